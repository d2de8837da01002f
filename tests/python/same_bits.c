/* Twenty steps of two parameters by penstock.h; commands_test.py does the same by penstock.AdamW and compares the bits.
 *
 *   same_bits STORE FILE     the weights, one parameter after the other, go to FILE
 */
#include <stdio.h>

#include "runtime/engine/penstock.h"

enum { kFirst = 70001, kSecond = 48, kSteps = 20 };
static float weights[kFirst + kSecond], gradients[kFirst + kSecond];

/* Exact in fp32, so that no compiler and no library rounds it. */
static float value(long element, long step) { return (float)((element * 37 + step * 101) % 257 - 128) / 256; }

static int check(int code) {
  if (code != PENSTOCK_OK) fprintf(stderr, "%s (%s)\n", penstock_message(), penstock_remedy());
  return code;
}

static int train(struct penstock_engine* engine) {
  for (long step = 1; step <= kSteps; ++step) {
    const struct penstock_rates rates[2] = {
        {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1},
        {.lr = 3e-3 / (double)step, .beta1 = 0.8, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0}};
    for (long i = 0; i < kFirst + kSecond; ++i) gradients[i] = value(i, step);
    if (check(penstock_begin(engine, rates, 2, 1, 1.0)) || check(penstock_gradient(engine, 0, 0, 0, gradients))) return 1;
    /* The second has none in each third step. */
    if (check(step % 3 == 0 ? penstock_absent(engine, 1) : penstock_gradient(engine, 1, 0, 0, gradients + kFirst)) ||
        check(penstock_step(engine, NULL, 0, NULL))) {
      return 1;
    }
  }
  return 0;
}

int main(int count, char** arguments) {
  if (count != 3) return 2;
  for (long i = 0; i < kFirst + kSecond; ++i) weights[i] = value(i, 0);
  const struct penstock_parameter parameters[2] = {
      {.name = "first", .elements = kFirst, .group = 0, .initial = weights, .weights_into = weights,
       .unit = PENSTOCK_UNIT_AUTO},
      {.name = "second", .elements = kSecond, .group = 1, .initial = weights + kFirst, .weights_into = weights + kFirst,
       .unit = PENSTOCK_UNIT_AUTO}};
  const char* drives[1] = {arguments[1]};
  const struct penstock_options options = {
      .size = sizeof(options), .drives = drives, .drive_count = 1, .host_bytes = 64 << 20};
  struct penstock_engine* engine;
  if (check(penstock_open(&options, parameters, 2, &engine))) return 1;
  const int failed = train(engine);
  if (check(penstock_close(engine)) || failed) return 1;
  FILE* file = fopen(arguments[2], "wb");
  return file == NULL || fwrite(weights, sizeof(weights), 1, file) != 1 || fclose(file) != 0;
}
