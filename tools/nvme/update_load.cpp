#include "tools/nvme/update_load.h"

#include <algorithm>
#include <cstring>

namespace penstock::tools {

UpdateLoad::UpdateLoad(const StateForm& form, uint64_t tile_elements, uint64_t memory_bytes)
    : elements_(tile_elements),
      layout_(form, tile_elements),
      weight_bytes_(tile_elements * bytes_of(form.weight)),
      gradient_bytes_(tile_elements * bytes_of(form.gradient)),
      updater_(form),
      expected_(updater_.checksum_count(tile_elements)) {
  const uint64_t tile_bytes = layout_.size_bytes + weight_bytes_ + gradient_bytes_;
  checksums_.assign(std::max<uint64_t>(1, memory_bytes / tile_bytes), expected_);
  states_ = Buffer::on_heap(tiles() * layout_.size_bytes);
  weights_ = Buffer::on_heap(tiles() * weight_bytes_);
  gradients_ = Buffer::on_heap(tiles() * gradient_bytes_);
  for (const Buffer* buffer : {&states_, &weights_, &gradients_}) std::memset(buffer->data(), 0, buffer->size_bytes());
  whole_.numbers.coefficients = make_coefficients(form.optimizer, Hyper(), 1);
}

cpu_optim::TileJob UpdateLoad::job(uint64_t tile) {
  cpu_optim::TileJob job;
  job.updater = &updater_;
  job.numbers = {&whole_, 1};
  job.tile = cpu_optim::TileView::in_place(layout_, states_.data() + tile * layout_.size_bytes,
                                           weights_.data() + tile * weight_bytes_,
                                           gradients_.data() + tile * gradient_bytes_, elements_, 0);
  job.notes.target_checksums = checksums_[tile];
  job.notes.expected_checksums = expected_;
  return job;
}

}  // namespace penstock::tools
