/* A program with a training loop of its own: logistic regression, whose AdamW state rests on a drive.
 *
 *   embed FOLDER STEPS       makes the store in FOLDER, or goes on from its last step
 *
 * cc embed.c $(pkg-config --cflags --libs penstock)
 */
#include <math.h>
#include <penstock/penstock.h>
#include <stdio.h>
#include <stdlib.h>

enum { kInputs = 1000, kSamples = 64 };

static float weights[kInputs], bias[1], gradient_of_weights[kInputs], gradient_of_bias[1];

static int failed(const char* what) {
  fprintf(stderr, "embed: %s: %s\n", what, penstock_message());
  if (*penstock_remedy() != '\0') fprintf(stderr, "try: %s\n", penstock_remedy());
  return 1;
}

/* Made-up data: the sign of a sum of every third input. */
static float input(uint64_t sample, int i) {
  return (float)((sample * 2654435761u + (uint64_t)i * 40503u) % 2001u) / 1000.0f - 1.0f;
}
static float label(uint64_t sample) {
  float sum = 0;
  for (int i = 0; i < kInputs; i += 3) sum += input(sample, i);
  return sum > 0 ? 1.0f : 0.0f;
}

static double loss_and_gradients(uint64_t step) {
  double loss = 0;
  for (int i = 0; i < kInputs; ++i) gradient_of_weights[i] = 0;
  gradient_of_bias[0] = 0;
  for (uint64_t sample = step * kSamples; sample < (step + 1) * kSamples; ++sample) {
    double z = bias[0];
    for (int i = 0; i < kInputs; ++i) z += (double)(weights[i] * input(sample, i));
    const double p = 1 / (1 + exp(-z)), y = (double)label(sample);
    loss -= (y > 0 ? log(p + 1e-12) : log(1 - p + 1e-12)) / kSamples;
    const float error = (float)((p - y) / kSamples);
    for (int i = 0; i < kInputs; ++i) gradient_of_weights[i] += error * input(sample, i);
    gradient_of_bias[0] += error;
  }
  return loss;
}

int main(int count, char** arguments) {
  if (count != 3) return fprintf(stderr, "embed FOLDER STEPS\n"), 2;
  const char* drives[] = {arguments[1]};
  const uint64_t last = strtoull(arguments[2], NULL, 10);

  const struct penstock_parameter parameters[] = {
      {"weights", kInputs, 0, PENSTOCK_FP32, weights, weights, PENSTOCK_UNIT_AUTO},
      {"bias", 1, 1, PENSTOCK_FP32, bias, bias, PENSTOCK_UNIT_AUTO}};
  struct penstock_options options = {0};
  options.size = sizeof(options);
  options.drives = drives;
  options.drive_count = 1;
  options.host_bytes = 64u << 20;
  struct penstock_engine* engine;
  if (penstock_open(&options, parameters, 2, &engine) != 0) return failed("open");

  /* What an earlier run has left. */
  uint64_t step;
  if (penstock_steps(engine, &step) != 0) return failed("steps");
  if (penstock_read(engine, 0, PENSTOCK_WEIGHT, 0, kInputs, PENSTOCK_FP32, weights) != 0) return failed("read");
  if (penstock_read(engine, 1, PENSTOCK_WEIGHT, 0, 1, PENSTOCK_FP32, bias) != 0) return failed("read");

  const struct penstock_rates matrix = {.lr = 0.02, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
  struct penstock_rates rates[] = {matrix, matrix};
  rates[1].weight_decay = 0;
  for (; step < last; ++step) {
    const double loss = loss_and_gradients(step);
    if (penstock_begin(engine, rates, 2, 1, 1.0) != 0) return failed("begin");
    if (penstock_publish(engine) != 0) return failed("publish"); /* backward is over */
    if (penstock_gradient(engine, 0, 0, PENSTOCK_FP32, gradient_of_weights) != 0) return failed("gradient");
    if (penstock_gradient(engine, 1, 0, PENSTOCK_FP32, gradient_of_bias) != 0) return failed("gradient");
    struct penstock_report report;
    if (penstock_step(engine, NULL, 0, &report) != 0) return failed("step");
    printf("step %llu loss %.17g norm %.17g\n", (unsigned long long)report.step, loss, report.gradient_norm);
    fflush(stdout);
  }
  return penstock_close(engine) != 0 ? failed("close") : 0;
}
