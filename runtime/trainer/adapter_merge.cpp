#include "runtime/trainer/adapter_merge.h"

#include <algorithm>

#include "tiering/check.h"

namespace penstock::trainer {
namespace {

const ModelParameter* find(const ModelUnit& unit, WeightRole role, Factor factor) {
  const auto found = std::ranges::find_if(
      unit.parameters, [&](const ModelParameter& p) { return p.role == role && p.factor == factor; });
  return found == unit.parameters.end() ? nullptr : &*found;
}

std::vector<float> transposed(std::span<const float> matrix, uint64_t rows, uint64_t columns) {
  std::vector<float> turned(matrix.size());
  for (uint64_t row = 0; row < rows; ++row)
    for (uint64_t column = 0; column < columns; ++column) turned[column * rows + row] = matrix[row * columns + column];
  return turned;
}

}  // namespace

AdapterMerge::AdapterMerge(const Model& model) : model_(model), adapters_(model.units.size()) {
  for (const ModelUse& use : model.uses) {
    for (uint32_t unit : use.units) {
      const bool is_adapters = model.units[unit].parameters.front().factor != Factor::none;
      if (is_adapters) adapters_[use.units.front()] = unit;
    }
  }
}

void AdapterMerge::take(uint32_t adapters, uint64_t first, std::span<const float> values) {
  if (taken_ != adapters) {
    taken_ = adapters;
    values_.assign(model_.units[adapters].elements, 0.0f);
    products_.fill(std::nullopt);
  }
  std::ranges::copy(values, values_.begin() + static_cast<ptrdiff_t>(first));
}

AdapterMerge::Product AdapterMerge::product_of(const ModelUnit& adapters, const ModelParameter& matrix) const {
  const ModelParameter* a = find(adapters, matrix.role, Factor::a);
  const ModelParameter* b = find(adapters, matrix.role, Factor::b);
  if (a == nullptr || b == nullptr) return {};
  const uint64_t rank = a->shape[0], in = a->shape[1], out = b->shape[0];
  const std::span all(values_);
  const auto a_values = all.subspan(a->first_element, a->elements),
             b_values = all.subspan(b->first_element, b->elements);
  Product product;
  if (model_.config.block == BlockKind::gpt2) {  // whose matrices are input by output
    product.left = transposed(a_values, rank, in);
    product.right = transposed(b_values, out, rank);
  } else {
    product.left.assign(b_values.begin(), b_values.end());
    product.right.assign(a_values.begin(), a_values.end());
  }
  const auto scale = static_cast<float>(model_.adapters->scale);
  for (float& x : product.left) x *= scale;
  return product;
}

void AdapterMerge::add(uint32_t unit, uint64_t first, std::span<float> values) {
  if (!adapters_.at(unit)) return;
  CHECK(taken_ == adapters_[unit], "unit ", unit, " is merged before its adapters are there");
  for (const ModelParameter& matrix : model_.units[unit].parameters) {
    const uint64_t begin = std::max(first, matrix.first_element);
    const uint64_t end = std::min(first + values.size(), matrix.first_element + matrix.elements);
    if (begin >= end || matrix.shape.size() != 2) continue;
    std::optional<Product>& product = products_[static_cast<size_t>(matrix.role)];
    if (!product) product = product_of(model_.units[*taken_], matrix);
    if (product->left.empty()) continue;
    const uint64_t columns = matrix.shape[1], rank = product->right.size() / columns;
    for (uint64_t at = begin; at < end;) {
      const uint64_t element = at - matrix.first_element, row = element / columns, column = element % columns;
      const uint64_t count = std::min(columns - column, end - at);
      float* to = values.data() + (at - first);
      for (uint64_t k = 0; k < rank; ++k) {
        const float left = product->left[row * rank + k];
        const float* right = product->right.data() + k * columns + column;
        for (uint64_t i = 0; i < count; ++i) to[i] += left * right[i];
      }
      at += count;
    }
  }
}

}  // namespace penstock::trainer
