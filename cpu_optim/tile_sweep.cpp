#include "cpu_optim/tile_sweep.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu_optim/flush_scope.h"
#include "cpu_optim/gradient.h"
#include "cpu_optim/streams.h"
#include "tiering/arithmetic/stochastic.h"

namespace penstock::cpu_optim {
namespace {

// How far ahead kernels ask for lines, as measured with AVX-512: four times as far costs fp32 moments 1 to 13 % (most
// where all planes are fp32) and bytes 8 % on two threads, a quarter as far costs bf16 3 to 4 %.
constexpr uint64_t prefetch_elements(MomentForm moments) { return moments == MomentForm::fp32 ? 128 : 1024; }
// With notes, what a kernel is given at once: all planes of it, read and written, stay in a first cache of 32 to
// 48 KiB. Lines are asked for one such run ahead, so that the notes taken before an update find them there.
constexpr uint64_t kNotedElements = 1024;
// A shorter tile's weight is left in the caches: somebody may want it soon.
constexpr uint64_t kStreamElements = kBlockElements;
// The upper half of an element's index goes into the random key, so no run may cross this.
constexpr uint64_t kKeyElements = uint64_t{1} << 32;

UpdateKernel kernel_for(const Kernels& kernels, const StateForm& form) {
  return kernels
      .update[static_cast<size_t>(form.optimizer)][static_cast<size_t>(form.master)][static_cast<size_t>(form.moments)];
}

// Without the runs that end before the element.
std::span<const NumbersRun> runs_from(std::span<const NumbersRun> runs, uint64_t first_element) {
  auto ends_later = [](uint64_t element, const NumbersRun& run) { return element < run.end_element; };
  return {std::upper_bound(runs.begin(), runs.end(), first_element, ends_later), runs.end()};
}

bool is_scale(const Plane& plane) { return plane.role == Role::momentum_scale || plane.role == Role::variance_scale; }

}  // namespace

TileSweep::TileSweep(const Kernels& kernels, const StateForm& form, std::span<const Plane> planes, const TileView& tile,
                     std::span<const NumbersRun> runs, const TileNotes& notes)
    : kernels_(kernels),
      form_(form),
      planes_(planes),
      tile_(tile),
      runs_(runs_from(runs, tile.first_element)),
      notes_(notes),
      kernel_(kernel_for(kernels, form)),
      group_elements_(form.moments == MomentForm::int8 ? kMomentBlockElements : kGroupElements),
      streams_weight_(may_stream_weight()) {
  views_[0] = tile.weight;
  std::copy(tile.planes.begin(), tile.planes.end(), views_.begin() + 1);

  const bool has_notes = wants_square_sums() || wants_source() || wants_target();
  CHECK(!has_notes || tile.first_element % kBlockElements == 0, "notes: first_element is not a multiple of ",
        kBlockElements);
  CHECK(form.moments != MomentForm::int8 || tile.first_element % kMomentBlockElements == 0,
        "a tile begins inside a block of moments");
  CHECK(tile.elements == 0 || (!runs_.empty() && runs_.back().end_element - tile.first_element >= tile.elements),
        "a tile has elements without numbers");
  const uint64_t blocks = ceil_div(tile.elements, kBlockElements);
  CHECK(!wants_square_sums() || notes.square_sums.size() >= blocks, "square_sums: ", notes.square_sums.size(),
        " entries, ", blocks, " expected");
  for (uint64_t room :
       {notes.source_checksums.size(), notes.target_checksums.size(), notes.expected_checksums.size()}) {
    CHECK(room == 0 || room >= blocks * planes.size(), "checksums: ", room, " entries, ", blocks * planes.size(),
          " expected");
  }
}

TileReport TileSweep::run() {
  FlushScope flush;
  if (wants_square_sums() || wants_source() || wants_target()) {
    for (uint64_t first = 0; first < tile_.elements; first += kBlockElements) {
      run_block(first, std::min(kBlockElements, tile_.elements - first));
    }
  } else {
    update(0, tile_.elements);
  }
  if (streams_weight_) end_streams();
  return report_;
}

void TileSweep::run_block(uint64_t first, uint64_t elements) {
  BlockNotes block;
  const uint64_t end = first + elements;
  for (uint64_t part = first; part < end; part += kNotedElements) {
    const uint64_t part_elements = std::min(kNotedElements, end - part);
    note_before(block, part, part_elements);
    update(part, part_elements);
    note_after(block, part, part_elements);
  }
  conclude(block, first / kBlockElements);
}

void TileSweep::note_before(BlockNotes& block, uint64_t first, uint64_t elements) {
  const size_t dtype = static_cast<size_t>(form_.gradient);
  if (wants_square_sums()) {
    const uint64_t whole = round_down(elements, kGroupElements);
    const std::byte* gradient = tile_.gradient + first * bytes_of(form_.gradient);
    kernels_.square_sums[dtype](gradient, whole, block.square_sums.data());
    if (whole != elements) {
      alignas(64) std::byte rest[kGroupElements * sizeof(float)] = {};
      std::memcpy(rest, gradient + whole * bytes_of(form_.gradient), (elements - whole) * bytes_of(form_.gradient));
      kernels_.square_sums[dtype](rest, kGroupElements, block.square_sums.data());
    }
  }
  if (!wants_source()) return;
  for (size_t i = 0; i < planes_.size(); ++i) {
    if (!is_read(i)) continue;
    if (!is_scale(planes_[i])) {
      block.source[i].add(kernels_, views_[i].source + planes_[i].bytes(first), planes_[i].bytes(elements));
    } else if (first % kBlockElements == 0) {
      // Too few bytes a part to fill stripes: the block's scales go at once.
      const uint64_t of_block = std::min(kBlockElements, tile_.elements - first);
      block.source[i].add(kernels_, views_[i].source + planes_[i].bytes(first), planes_[i].bytes(of_block));
    }
  }
}

void TileSweep::note_after(BlockNotes& block, uint64_t first, uint64_t elements) {
  if (!wants_target()) return;
  const uint64_t block_first = round_down(first, kBlockElements);
  const uint64_t block_end = std::min(block_first + kBlockElements, tile_.elements);
  for (size_t i = 0; i < planes_.size(); ++i) {
    if (!is_scale(planes_[i])) {
      block.target[i].add(kernels_, views_[i].target + planes_[i].bytes(first), planes_[i].bytes(elements));
    } else if (first + elements == block_end) {
      block.target[i].add(kernels_, views_[i].target + planes_[i].bytes(block_first),
                          planes_[i].bytes(block_end - block_first));
    }
  }
}

void TileSweep::conclude(const BlockNotes& block, uint64_t number) {
  if (wants_square_sums()) {
    notes_.square_sums[number] = sum_of_lanes(block.square_sums);
    report_.gradient_finite = report_.gradient_finite && std::isfinite(notes_.square_sums[number]);
  }
  for (size_t i = 0; i < planes_.size(); ++i) {
    const uint64_t at = number * planes_.size() + i;
    const uint64_t seed = notes_.checksum_seed + at;
    if (wants_target()) notes_.target_checksums[at] = block.target[i].finish(seed);
    if (!wants_source() || !is_read(i)) continue;
    const uint64_t source = block.source[i].finish(seed);
    if (!notes_.source_checksums.empty()) notes_.source_checksums[at] = source;
    if (!notes_.expected_checksums.empty() && notes_.expected_checksums[at] != source) {
      report_.checksum_mismatch = std::min(report_.checksum_mismatch, at);
    }
  }
}

void TileSweep::update(uint64_t first, uint64_t elements) {
  const uint64_t end = first + elements;
  while (first < end) {
    const uint64_t index = tile_.first_element + first;
    const auto& [numbers, end_element, untouched] = numbers_at(index);
    const uint64_t until_key = kKeyElements - index % kKeyElements;
    const uint64_t here = std::min({end - first, until_key, end_element - index});
    if (untouched) {
      keep(first, here);
      first += here;
      continue;
    }
    const uint64_t whole = round_down(here, group_elements_);
    if (whole != 0) kernel_(run_at(first, whole, numbers), numbers.coefficients);
    if (whole != here) {
      CHECK(form_.moments != MomentForm::int8 || first + here == tile_.elements,
            "numbers change inside a block of moments, at element ", end_element);
      update_ragged(run_at(first + whole, here - whole, numbers), numbers.coefficients);
    }
    first += here;
  }
}

// What lies elsewhere afterwards is copied. A weight beside a full master is only written: it is made of the master.
void TileSweep::keep(uint64_t first, uint64_t elements) {
  CHECK(form_.moments != MomentForm::int8 || first + elements == tile_.elements ||
            (tile_.first_element + first + elements) % kMomentBlockElements == 0,
        "numbers change inside a block of moments, at element ", tile_.first_element + first + elements);
  for (size_t i = 0; i < planes_.size(); ++i) {
    const PlaneView& view = views_[i];
    const uint64_t offset_bytes = planes_[i].bytes(first);
    if (is_read(i) && view.source != view.target) {
      std::memcpy(view.target + offset_bytes, view.source + offset_bytes, planes_[i].bytes(elements));
    }
    if (planes_[i].role != Role::master) continue;
    GradientKernels(kernels_.isa)
        .cast(planes_[i].dtype, view.source + offset_bytes, form_.weight, views_[0].target + planes_[0].bytes(first),
              elements);
  }
}

const NumbersRun& TileSweep::numbers_at(uint64_t index) {
  while (runs_.front().end_element <= index) runs_ = runs_.subspan(1);
  return runs_.front();
}

void TileSweep::update_ragged(const TilePart& run, const Coefficients& coefficients) {
  constexpr uint64_t kScratchBytes = kMomentBlockElements * sizeof(float);
  alignas(64) std::byte scratch[kPlanesMax + 1][kScratchBytes] = {};
  TilePart whole = run;
  whole.elements = group_elements_;
  whole.stream_weight = false;
  for (size_t i = 0; i < planes_.size(); ++i) {
    if (is_read(i)) std::memcpy(scratch[i], run.planes[i].source, planes_[i].bytes(run.elements));
    whole.planes[i] = PlaneView::in_place(scratch[i]);
  }
  std::memcpy(scratch[kPlanesMax], run.gradient, run.elements * bytes_of(form_.gradient));
  whole.gradient = scratch[kPlanesMax];
  kernel_(whole, coefficients);
  for (size_t i = 0; i < planes_.size(); ++i) {
    std::memcpy(run.planes[i].target, scratch[i], planes_[i].bytes(run.elements));
  }
}

TilePart TileSweep::run_at(uint64_t first, uint64_t elements, const StepNumbers& numbers) const {
  TilePart run{};
  for (size_t i = 0; i < planes_.size(); ++i) {
    const uint64_t offset_bytes = planes_[i].bytes(first);
    run.planes[i].target = views_[i].target + offset_bytes;
    if (is_read(i)) run.planes[i].source = views_[i].source + offset_bytes;
  }
  run.gradient = tile_.gradient + first * bytes_of(form_.gradient);
  run.elements = elements;
  run.weight_dtype = form_.weight;
  run.gradient_dtype = form_.gradient;
  run.gradient_scale = numbers.gradient_scale;
  const uint64_t index = tile_.first_element + first;
  run.random_key = arithmetic::random_key(numbers.seed, numbers.step, static_cast<uint32_t>(index >> 32));
  run.random_index = static_cast<uint32_t>(index);
  run.prefetch_elements = wants_source() ? kNotedElements : prefetch_elements(form_.moments);
  run.stream_weight = streams_weight_ && may_stream_to(run.planes[0].target);
  return run;
}

// A weight that is not read where it is written need not be fetched to be overwritten.
bool TileSweep::may_stream_weight() const {
  const bool is_elsewhere = form_.master == MasterForm::full || tile_.weight.source != tile_.weight.target;
  return form_.master != MasterForm::same && is_elsewhere && !wants_target() && tile_.elements >= kStreamElements &&
         may_stream_to(tile_.weight.target);
}

}  // namespace penstock::cpu_optim
