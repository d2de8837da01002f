// Which tokens a step learns from: a pure function of (seed, number of the sample), so that where training stands is
// one number.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/trainer/batch.h"
#include "runtime/trainer/data/prepared_set.h"
#include "runtime/trainer/data/token_file.h"

namespace penstock::trainer {

// A permutation of [0, count): place i goes to value_of(i). Nothing of size `count` is in memory.
class Shuffle {
 public:
  Shuffle(uint64_t seed, uint64_t count);
  // REQUIRES: place < count.
  uint64_t value_of(uint64_t place) const;

 private:
  uint64_t round_trip(uint64_t value) const;

  const uint64_t key_, count_;
  uint32_t half_bits_ = 1;
};

// Of a file of tokens, or one part of a prepared set.
struct DataSet {
  std::shared_ptr<const TokenFile> file;
  double weight = 1;  // its share of the samples, among all weights
  std::shared_ptr<const PreparedSet> prepared = nullptr;
  size_t part = 0;  // of those of the prepared set's manifest

  const std::string& path() const { return prepared != nullptr ? prepared->path() : file->path(); }
};

// Samples of `length` tokens: the tokens, and as targets each one's next. A file is cut into samples that share no
// target, and the last ones are held out for evaluation. A prepared set's samples are its rows; it says itself which of
// them are held out, which tokens are targets, and where documents begin: where there is such a set, batches have
// positions.
class Samples {
 public:
  struct Options {
    uint64_t length = 0;
    uint64_t seed = 0;
    double held_out_share = 0;  // of files
  };
  // Refuses sets that have no sample or longer rows, and weights that are not positive.
  static Result<Samples> make(std::vector<DataSet> sets, const Options& options);

  // Of one pass over everything, in proportion to the weights: until the set that is through first is through.
  uint64_t epoch_samples() const;
  uint64_t held_out_samples() const;
  // What each set has of the samples that are held out: [first, first + count). In the order of sets, without those
  // that have none.
  struct HeldOut {
    std::string set;  // for a user: "a.txt"
    uint64_t first = 0, count = 0;
  };
  std::vector<HeldOut> held_out_of_sets() const;

  // Sample `number` of the endless sequence: every set again and again, each time in another order.
  void read(uint64_t number, const RowPlaces& into) const;
  void read_held_out(uint64_t number, const RowPlaces& into) const;
  // Where sample `number` of the endless sequence lies, for a user: "a.txt, tokens 320 to 335".
  std::string where(uint64_t number) const;
  // Samples [first, first + count) as one micro-batch.
  MicroBatch batch(uint64_t first, uint64_t count) const;
  MicroBatch held_out_batch(uint64_t first, uint64_t count) const;

 private:
  struct Source {
    DataSet set;
    uint64_t training = 0, held_out = 0;  // samples
    uint64_t first_training = 0, first_held_out = 0;
  };
  struct Turn {
    size_t source = 0;
    uint64_t ordinal = 0;  // among the samples that were taken of the source
  };
  template <typename Read>
  MicroBatch batch_of(uint64_t count, Read read_into) const;
  Turn turn_of(uint64_t number) const;
  static std::string name_of(const DataSet& set);
  // Of the sample among those of its source.
  uint64_t row_of(const Turn& turn) const;
  static Result<Source> source_of(DataSet set, const Options& options);
  void read_sample(const Source& source, uint64_t sample, const RowPlaces& into) const;

  Options options_;
  bool packed_ = false;  // some set is prepared
  std::vector<Source> sources_;
  // A round of samples: which source has each place of it, and its ordinal within the round.
  std::vector<uint32_t> round_;
  std::vector<uint32_t> ordinals_;
  std::vector<uint32_t> per_round_;  // by source
};

}  // namespace penstock::trainer
