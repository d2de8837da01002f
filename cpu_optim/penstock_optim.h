/* The optimizers for C: one step over arrays of the caller's, on the calling thread, in one pass.
 *
 * The fastest kernels that this processor can run are chosen at the first call. All kernels give the same bits, in any
 * floating-point mode of the caller. For fp32 arrays these are the bits of torch 2.13's fused AdamW, Adam,
 * Adagrad and SGD on the CPU, as far as elements come in whole sixteens (the rest of a torch loop is rounded
 * otherwise). Lion is not among torch's optimizers: its bits are those of the loop in its paper. Unlike torch,
 *   moments below 2^-100, and weights, scaled gradients and changes of a weight below 2^-119, count as zero: gradients
 *     below 3e-14 leave no variance at a beta2 of 0.999, and are divided by eps alone;
 *   a moment times the step size is zero below 2^-126, as it is to torch after set_flush_denormal(True);
 *   a NaN is 0x7fc00000.
 *
 * Every function returns 0, or 2 if it refuses its arguments. A refused call has written nothing. It refuses
 *   step 0, a missing array, arrays that overlap, an unknown dtype, a gradient_scale that is not finite;
 *   an lr outside [0, 2^40]; a weight_decay or lr_decay that is negative; any value that is NaN, or infinite in fp32;
 *   a beta that is neither 0 nor in [2^-26, 1 - 2^-25), a momentum that is neither 0 nor 2^-26 and more;
 *   an eps below 2^-126 (torch takes 0, and makes NaN of an element that has had no gradient);
 *   Nesterov without momentum, or with dampening.
 */
#ifndef PENSTOCK_OPTIM_H
#define PENSTOCK_OPTIM_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define PENSTOCK_OPTIM_API __attribute__((visibility("default")))
#else
#define PENSTOCK_OPTIM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum penstock_dtype { PENSTOCK_FP32 = 0, PENSTOCK_BF16 = 1, PENSTOCK_FP16 = 2 };

/* The arrays, at any address. No two overlap. */
struct penstock_arrays {
  uint64_t elements;
  float* master; /* updated in place */
  void* weight;  /* receives the master rounded to weight_dtype; NULL if no 16-bit weight is wanted */
  const void* gradient;
  float* momentum;  /* NULL if the optimizer has none */
  float* variance;  /* likewise */
  int weight_dtype; /* PENSTOCK_BF16 or PENSTOCK_FP16; not read if weight is NULL */
  int gradient_dtype;
  double* gradient_square_sum; /* NULL, or receives the sum of squares of the gradient as it lies, in double and in one
                                  order whatever the Isa; it is finite if and only if every gradient is */
  float gradient_scale;        /* every gradient is multiplied by it: 1 / loss scale, times the clip factor; below
                                  2^-126 it counts as zero */
};

struct penstock_rates {
  double lr, beta1, beta2, eps, weight_decay;
  double momentum, dampening, lr_decay;
  int nesterov;
};

/* `step` counts from 1. Fields of the rates that an optimizer does not have are not read. */
PENSTOCK_OPTIM_API int penstock_adamw(const struct penstock_arrays* arrays, const struct penstock_rates* rates,
                                      uint64_t step);
PENSTOCK_OPTIM_API int penstock_adam(const struct penstock_arrays* arrays, const struct penstock_rates* rates,
                                     uint64_t step);
PENSTOCK_OPTIM_API int penstock_adagrad(const struct penstock_arrays* arrays, const struct penstock_rates* rates,
                                        uint64_t step);
PENSTOCK_OPTIM_API int penstock_lion(const struct penstock_arrays* arrays, const struct penstock_rates* rates,
                                     uint64_t step);
PENSTOCK_OPTIM_API int penstock_sgd(const struct penstock_arrays* arrays, const struct penstock_rates* rates,
                                    uint64_t step);

/* "avx512", "avx2", "sse2", "neon" or "scalar": the kernels in use. */
PENSTOCK_OPTIM_API const char* penstock_optim_isa(void);
/* Uses the named kernels from now on; 2 if they do not exist or the processor cannot run them. For tests. */
PENSTOCK_OPTIM_API int penstock_optim_use_isa(const char* name);

#ifdef __cplusplus
}
#endif
#endif
