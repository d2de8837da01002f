#include "runtime/trainer/data/samples.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "runtime/trainer/counter_random.h"

namespace penstock::trainer {
namespace {

// Places in a round: weights are kept to one part in so many.
constexpr uint32_t kRound = 10000;
constexpr uint64_t kRoundsOfFeistel = 6;

}  // namespace

Shuffle::Shuffle(uint64_t seed, uint64_t count) : key_(seed), count_(count) {
  CHECK(count > 0, "nothing to shuffle");
  half_bits_ = std::max<uint32_t>(1, (static_cast<uint32_t>(std::bit_width(count - 1)) + 1) / 2);
}

// A network of Feistel's is a permutation of 2^(2 x half) values whatever its rounds compute.
uint64_t Shuffle::round_trip(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_, right = value & mask;
  for (uint64_t round = 0; round < kRoundsOfFeistel; ++round) {
    const uint64_t next = left ^ (stream_key(key_, round, right) & mask);
    left = right, right = next;
  }
  return left << half_bits_ | right;
}

// What falls outside goes round again, and so ends inside: fewer than four times on average, since there are fewer than
// 4 x count values.
uint64_t Shuffle::value_of(uint64_t place) const {
  CHECK(place < count_, "place ", place, " of ", count_);
  do place = round_trip(place);
  while (place >= count_);
  return place;
}

Result<Samples> Samples::make(std::vector<DataSet> sets, const Options& options) {
  if (options.length < 1) return Status(Code::kUsage, "data: samples of 0 tokens");
  if (sets.empty()) return Status(Code::kUsage, "data: no files are given");
  if (!(options.held_out_share >= 0 && options.held_out_share < 1))
    return Status(Code::kUsage,
                  text("data: a held-out share of ", options.held_out_share, ", from 0 to below 1 expected"));
  Samples samples;
  samples.options_ = options;
  double weights = 0;
  for (DataSet& set : sets) {
    const std::string path = set.path();
    if (!(set.weight > 0 && std::isfinite(set.weight)))
      return Status(Code::kUsage, text("data: ", path, ": a weight of ", set.weight, ", more than 0 expected"));
    weights += set.weight;
    samples.packed_ |= set.prepared != nullptr;
    PENSTOCK_TRY_ASSIGN(source, source_of(std::move(set), options));
    samples.sources_.push_back(std::move(source));
  }
  // Each place of a round goes to the source that is farthest behind its share.
  const size_t count = samples.sources_.size();
  const uint32_t round = count == 1 ? 1 : kRound;
  samples.per_round_.assign(count, 0);
  for (uint32_t place = 0; place < round; ++place) {
    size_t behind = 0;
    double most = -1;
    for (size_t i = 0; i < count; ++i) {
      const double lag = samples.sources_[i].set.weight / weights * (place + 1) - samples.per_round_[i];
      if (lag > most) most = lag, behind = i;
    }
    samples.round_.push_back(static_cast<uint32_t>(behind));
    samples.ordinals_.push_back(samples.per_round_[behind]++);
  }
  for (size_t i = 0; i < count; ++i)
    if (samples.per_round_[i] == 0)
      return Status(Code::kUsage,
                    text("data: ", samples.sources_[i].set.path(), ": a weight of ", samples.sources_[i].set.weight,
                         " among ", weights, " is less than 1 in ", round));
  return samples;
}

Result<Samples::Source> Samples::source_of(DataSet set, const Options& options) {
  Source source{.set = std::move(set)};
  const std::string& path = source.set.path();
  if (source.set.prepared != nullptr) {
    const PreparedManifest& manifest = source.set.prepared->manifest();
    const PreparedManifest::Part& part = manifest.parts[source.set.part];
    if (options.length < manifest.length)
      return Status(
          Code::kUsage,
          text("data: ", path, ": rows of ", manifest.length, " tokens do not fit into samples of ", options.length),
          text("\"sequence_length\": ", manifest.length));
    if (part.training.count == 0)
      return Status(Code::kUsage, text("data: ", path, ": set '", part.name, "' has no rows to train on"));
    source.training = part.training.count, source.first_training = part.training.first;
    source.held_out = part.held_out.count, source.first_held_out = part.held_out.first;
    return source;
  }
  const uint64_t all = (source.set.file->tokens() - 1) / options.length;
  source.held_out = static_cast<uint64_t>(std::ceil(static_cast<double>(all) * options.held_out_share));
  if (all == 0 || source.held_out >= all)
    return Status(Code::kUsage,
                  text("data: ", path, ": ", source.set.file->tokens(), " tokens are ", all, " samples of ",
                       options.length, " and one more, of which ", source.held_out, " are held out"),
                  "give more text, shorter samples or a smaller held-out share");
  source.training = all - source.held_out;
  source.first_held_out = source.training;
  return source;
}

uint64_t Samples::epoch_samples() const {
  double least = INFINITY;
  for (size_t i = 0; i < sources_.size(); ++i)
    least = std::min(least, static_cast<double>(sources_[i].training) * round_.size() / per_round_[i]);
  return std::max<uint64_t>(1, static_cast<uint64_t>(least));
}

uint64_t Samples::held_out_samples() const {
  uint64_t sum = 0;
  for (const Source& source : sources_) sum += source.held_out;
  return sum;
}

std::vector<Samples::HeldOut> Samples::held_out_of_sets() const {
  std::vector<HeldOut> sets;
  uint64_t first = 0;
  for (const Source& source : sources_) {
    if (source.held_out > 0) sets.push_back({name_of(source.set), first, source.held_out});
    first += source.held_out;
  }
  return sets;
}

std::string Samples::name_of(const DataSet& set) {
  if (set.prepared == nullptr) return set.path();
  return text(set.path(), ", set '", set.prepared->manifest().parts[set.part].name, "'");
}

Samples::Turn Samples::turn_of(uint64_t number) const {
  const uint64_t round = number / round_.size(), place = number % round_.size();
  const size_t source = round_[place];
  return {source, round * per_round_[source] + ordinals_[place]};
}

uint64_t Samples::row_of(const Turn& turn) const {
  const Source& source = sources_[turn.source];
  const uint64_t epoch = turn.ordinal / source.training;
  const Shuffle shuffle(stream_key(options_.seed, turn.source, epoch), source.training);
  return source.first_training + shuffle.value_of(turn.ordinal % source.training);
}

void Samples::read(uint64_t number, const RowPlaces& into) const {
  const Turn turn = turn_of(number);
  read_sample(sources_[turn.source], row_of(turn), into);
}

std::string Samples::where(uint64_t number) const {
  const Turn turn = turn_of(number);
  const DataSet& set = sources_[turn.source].set;
  const uint64_t row = row_of(turn), first = row * options_.length;
  if (set.prepared == nullptr) return text(set.path(), ", tokens ", first, " to ", first + options_.length - 1);
  return text(name_of(set), ", row ", row);
}

void Samples::read_held_out(uint64_t number, const RowPlaces& into) const {
  CHECK(number < held_out_samples(), "held-out sample ", number, " of ", held_out_samples());
  for (const Source& source : sources_) {
    if (number < source.held_out) return read_sample(source, source.first_held_out + number, into);
    number -= source.held_out;
  }
}

void Samples::read_sample(const Source& source, uint64_t sample, const RowPlaces& into) const {
  CHECK(into.tokens.size() == options_.length && into.targets.size() == options_.length, "samples have ",
        options_.length, " tokens");
  if (source.set.prepared != nullptr) return source.set.prepared->read_row(sample, into);
  source.set.file->read(sample * options_.length, into.tokens);
  source.set.file->read(sample * options_.length + 1, into.targets);
  std::iota(into.positions.begin(), into.positions.end(), 0);
}

template <typename Read>
MicroBatch Samples::batch_of(uint64_t count, Read read_into) const {
  MicroBatch batch;
  batch.sequences = static_cast<int64_t>(count), batch.length = static_cast<int64_t>(options_.length);
  batch.tokens.resize(count * options_.length), batch.targets.resize(count * options_.length);
  if (packed_) batch.positions.resize(count * options_.length);
  for (uint64_t i = 0; i < count; ++i) {
    auto row = [&](std::vector<int32_t>& all) {
      return all.empty() ? std::span<int32_t>() : std::span(all).subspan(i * options_.length, options_.length);
    };
    read_into(i, {row(batch.tokens), row(batch.targets), row(batch.positions)});
  }
  return batch;
}

MicroBatch Samples::batch(uint64_t first, uint64_t count) const {
  return batch_of(count, [&](uint64_t i, const RowPlaces& into) { read(first + i, into); });
}

MicroBatch Samples::held_out_batch(uint64_t first, uint64_t count) const {
  return batch_of(count, [&](uint64_t i, const RowPlaces& into) { read_held_out(first + i, into); });
}

}  // namespace penstock::trainer
