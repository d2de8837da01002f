// Between the structs and numbers of penstock.h and the engine's types. What a C caller can get wrong in them is
// refused here. For penstock.cpp alone.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/engine/embedded_engine.h"
#include "runtime/engine/penstock.h"

namespace penstock::engine {

// That the caller gave something wrong, or nothing.
Status usage(const std::string& message);

Result<Dtype> dtype_of(int dtype);
int c_dtype_of(Dtype dtype);
Result<Role> role_of(int role);

EmbeddedParameter::Weights weights_of(void* weights_into);
Result<EmbeddedOptions> options_of(const penstock_options& given, const penstock_parameter* parameters,
                                   uint32_t parameter_count);
std::vector<Hyper> hypers_of(std::span<const penstock_rates> groups);

Result<ComputePass> pass_of(const penstock_pass* pass);
penstock_pass c_pass_of(const ComputePass& pass);
penstock_report c_report_of(const StepReport& done);

}  // namespace penstock::engine
