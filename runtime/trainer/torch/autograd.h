// LibTorch's autograd. Its logging defines a CHECK of its own, which must not take the place of ours:
// included before any other header of LibTorch's but ATen/core/Tensor.h.
#pragma once

#include "tiering/check.h"

#pragma push_macro("CHECK")
#undef CHECK
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/csrc/autograd/variable.h>
#pragma pop_macro("CHECK")
