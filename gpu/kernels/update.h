// One optimizer step over a tile, element by element as tiering/arithmetic/optimizer.h defines it.
//
// The optimizer is a template argument. The formats of weight, gradient, master and moments are run-time values,
// because all threads of a launch take the same branch and memory is the limit: 26 B at 4.8 TB/s leave about 150
// instructions for each element on an H200.
#pragma once

#include "gpu/kernels/packet.h"
#include "tiering/arithmetic/byte_moments.h"
#include "tiering/arithmetic/optimizer.h"
#include "tiering/arithmetic/stochastic.h"

namespace penstock::gpu {

// kernel::UpdateTile with its planes by name, as launch code prepares it.
struct UpdatePlanes {
  StateForm form;
  StepNumbers numbers;
  uint32_t step_key = 0;
  std::byte* weight = nullptr;
  const std::byte* gradient = nullptr;
  float* master = nullptr;
  uint16_t* master_low = nullptr;
  std::byte* momentum = nullptr;
  std::byte* variance = nullptr;
  float* momentum_scale = nullptr;
  float* variance_scale = nullptr;
  uint64_t elements = 0;
  uint64_t first_element = 0;
};

// Four elements in a thread's registers.
struct UpdatePacket {
  Packet<float> gradient, master, momentum, variance;
};

struct UpdateMaster : UpdatePlanes {
  PENSTOCK_HOST_DEVICE Packet<float> load_master(uint64_t index, uint32_t length) const {
    if (form.master == MasterForm::full) return load(master + index, length);
    if (form.master == MasterForm::same) return load(reinterpret_cast<const float*>(weight) + index, length);
    Packet<uint16_t> high = load(reinterpret_cast<const uint16_t*>(weight) + index, length);
    Packet<uint16_t> low = load(master_low + index, length);
    Packet<float> joined;
    for (uint32_t i = 0; i < kPacket; ++i) joined.values[i] = arithmetic::join({high.values[i], low.values[i]});
    return joined;
  }

  PENSTOCK_HOST_DEVICE void store_master(uint64_t index, uint32_t length, const Packet<float>& packet) const {
    if (form.master != MasterForm::split) {
      if (form.master == MasterForm::full) store(master + index, length, packet);
      store_narrow(weight, form.weight, index, length, packet);
      return;
    }
    Packet<uint16_t> high, low;
    for (uint32_t i = 0; i < kPacket; ++i) {
      arithmetic::SplitMaster split = arithmetic::split_of(packet.values[i]);
      high.values[i] = split.high;
      low.values[i] = split.low;
    }
    store(reinterpret_cast<uint16_t*>(weight) + index, length, high);
    store(master_low + index, length, low);
  }

  PENSTOCK_HOST_DEVICE void random_of(uint64_t index, uint32_t (&random)[kPacket]) const {
    for (uint32_t i = 0; i < kPacket; ++i) {
      uint64_t element = first_element + index + i;
      uint32_t key = arithmetic::random_key(step_key, static_cast<uint32_t>(element >> 32));
      random[i] = arithmetic::random_bits(key, static_cast<uint32_t>(element));
    }
  }

  template <OptimizerKind kind, arithmetic::Moments moments>
  PENSTOCK_HOST_DEVICE void step(UpdatePacket& packet, float of_momentum = 1, float of_root = 1) const {
    const arithmetic::Scales scales{numbers.gradient_scale, of_momentum, of_root};
    for (uint32_t i = 0; i < kPacket; ++i) {
      arithmetic::optimizer_step<arithmetic::PlainNumbers, kind, moments>(
          numbers.coefficients, scales, packet.gradient.values[i], packet.master.values[i], packet.momentum.values[i],
          packet.variance.values[i]);
    }
  }
};

// Moments in fp32 or bf16.
template <OptimizerKind kind>
struct UpdateKernel : UpdateMaster {
  static constexpr uint32_t kPhases = 1;
  using Shared = Nothing;
  using Local = Nothing;
  static constexpr bool kHasMomentum = has_momentum(kind);
  static constexpr bool kHasVariance = has_variance(kind);

  PENSTOCK_HOST_DEVICE uint64_t blocks() const { return (elements + kThreads * kPacket - 1) / (kThreads * kPacket); }

  PENSTOCK_HOST_DEVICE void run(uint32_t, uint64_t block, uint32_t thread, Shared&, Local&) const {
    uint64_t index = (block * kThreads + thread) * kPacket;
    uint32_t length = packet_length(index, elements);
    if (length == 0) return;
    Dtype moment = form.moments == MomentForm::fp32 ? Dtype::fp32 : Dtype::bf16;
    RawPacket gradient_raw = load_raw(gradient, form.gradient, index, length);
    RawPacket momentum_raw{}, variance_raw{};
    if (kHasMomentum) momentum_raw = load_raw(momentum, moment, index, length);
    if (kHasVariance) variance_raw = load_raw(variance, moment, index, length);
    UpdatePacket packet{widen(gradient_raw, form.gradient), load_master(index, length), widen(momentum_raw, moment),
                        widen(variance_raw, moment)};
    if (form.moments == MomentForm::fp32) {
      step<kind, arithmetic::Moments::divided>(packet);
      if (kHasMomentum) store_narrow(momentum, Dtype::fp32, index, length, packet.momentum);
      if (kHasVariance) store_narrow(variance, Dtype::fp32, index, length, packet.variance);
    } else {
      step<kind, arithmetic::Moments::multiplied>(packet);
      uint32_t random[kPacket];
      random_of(index, random);
      if (kHasMomentum) store_stochastic(momentum, index, length, packet.momentum, random, 0);
      if (kHasVariance) store_stochastic(variance, index, length, packet.variance, random, 16);
    }
    store_master(index, length, packet.master);
  }

 private:
  static PENSTOCK_HOST_DEVICE void store_stochastic(std::byte* plane, uint64_t index, uint32_t length,
                                                    const Packet<float>& packet, const uint32_t (&random)[kPacket],
                                                    uint32_t shift) {
    Packet<uint16_t> halves;
    for (uint32_t i = 0; i < kPacket; ++i) {
      halves.values[i] = arithmetic::bf16_stochastic(packet.values[i], static_cast<uint16_t>(random[i] >> shift));
    }
    store(reinterpret_cast<uint16_t*>(plane) + index, length, halves);
  }
};

// Moments of one byte: their blocks of 256 elements are 64 threads' packets, which agree on a scale before any is
// written. The variance rests as its root.
template <OptimizerKind kind>
struct UpdateByteKernel : UpdateMaster {
  static constexpr uint32_t kPhases = 3;
  static constexpr uint32_t kThreadsOfBlock = kMomentBlockElements / kPacket;
  static constexpr uint32_t kPartsOfBlock = 8;  // of 8 threads each
  struct Largest {
    uint32_t momentum, root;
  };
  struct Shared {
    Largest of_4[kThreads];
    Largest of_32[kThreads / 8];
  };
  struct Local {
    Packet<float> master;
    Packet<uint32_t> momentum, root;  // rounded
  };
  static constexpr bool kHasMomentum = has_momentum(kind);
  static constexpr bool kHasVariance = has_variance(kind);

  PENSTOCK_HOST_DEVICE uint64_t blocks() const { return (elements + kThreads * kPacket - 1) / (kThreads * kPacket); }

  PENSTOCK_HOST_DEVICE void run(uint32_t phase, uint64_t block, uint32_t thread, Shared& shared, Local& local) const {
    uint64_t index = (block * kThreads + thread) * kPacket;
    uint32_t length = packet_length(index, elements);
    switch (phase) {
      case 0:
        shared.of_4[thread] = length == 0 ? Largest{0, 0} : updated(index, length, local);
        return;
      case 1:
        if (thread % 8 == 0) shared.of_32[thread / 8] = largest(&shared.of_4[thread]);
        return;
      default:
        if (length == 0) return;
        write(index, length, largest(&shared.of_32[thread / kThreadsOfBlock * kPartsOfBlock]), local);
    }
  }

 private:
  PENSTOCK_HOST_DEVICE Largest updated(uint64_t index, uint32_t length, Local& local) const {
    uint64_t scale_index = index / kMomentBlockElements;
    UpdatePacket packet{load_wide(gradient, form.gradient, index, length), load_master(index, length), {}, {}};
    if (kHasMomentum) {
      Packet<uint8_t> codes = load(reinterpret_cast<const uint8_t*>(momentum) + index, length);
      for (uint32_t i = 0; i < kPacket; ++i) {
        packet.momentum.values[i] = arithmetic::momentum_of_code(codes.values[i]);
      }
    }
    if (kHasVariance) {
      Packet<uint8_t> codes = load(reinterpret_cast<const uint8_t*>(variance) + index, length);
      for (uint32_t i = 0; i < kPacket; ++i) packet.variance.values[i] = arithmetic::root_of_code(codes.values[i]);
    }
    step<kind, arithmetic::Moments::rooted>(packet, kHasMomentum ? momentum_scale[scale_index] : 1.0f,
                                            kHasVariance ? variance_scale[scale_index] : 1.0f);
    local.master = packet.master;
    Largest most{0, 0};
    // Of a packet's whole length, so that it stays in registers; what is past the end counts for nothing.
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kPacket; ++i) {
      uint64_t element = first_element + index + i;
      uint32_t key = arithmetic::random_key(step_key, static_cast<uint32_t>(element >> 32));
      uint32_t random = arithmetic::byte_random_bits(key, static_cast<uint32_t>(element));
      local.momentum.values[i] = arithmetic::rounded_momentum(packet.momentum.values[i], random);
      local.root.values[i] = arithmetic::rounded_root(packet.variance.values[i], random);
      if (i < length) {
        most = larger(most, {local.momentum.values[i] & arithmetic::kMagnitudeHalf, local.root.values[i]});
      }
    }
    return most;
  }

  PENSTOCK_HOST_DEVICE void write(uint64_t index, uint32_t length, Largest most, const Local& local) const {
    bool is_first = index % kMomentBlockElements == 0;
    if (kHasMomentum) {
      float scale = arithmetic::scale_of_half(arithmetic::momentum_scale_half(most.momentum));
      Packet<uint8_t> codes;
      for (uint32_t i = 0; i < kPacket; ++i) {
        codes.values[i] = arithmetic::code_of_momentum(local.momentum.values[i], scale);
      }
      store(reinterpret_cast<uint8_t*>(momentum) + index, length, codes);
      if (is_first) momentum_scale[index / kMomentBlockElements] = scale;
    }
    if (kHasVariance) {
      float scale = arithmetic::scale_of_half(arithmetic::root_scale_half(most.root));
      Packet<uint8_t> codes;
      for (uint32_t i = 0; i < kPacket; ++i) {
        codes.values[i] = arithmetic::code_of_root(local.root.values[i], scale);
      }
      store(reinterpret_cast<uint8_t*>(variance) + index, length, codes);
      if (is_first) variance_scale[index / kMomentBlockElements] = scale;
    }
    store_master(index, length, local.master);
  }

  static PENSTOCK_HOST_DEVICE Largest larger(Largest a, Largest b) {
    return {a.momentum > b.momentum ? a.momentum : b.momentum, a.root > b.root ? a.root : b.root};
  }

  static PENSTOCK_HOST_DEVICE Largest largest(const Largest* eight) {
    Largest most = eight[0];
    for (uint32_t i = 1; i < 8; ++i) most = larger(most, eight[i]);
    return most;
  }
};

}  // namespace penstock::gpu
