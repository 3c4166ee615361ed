#pragma once

#include <torch/csrc/stable/tensor.h>

namespace linked {

inline torch::stable::Tensor checked(torch::stable::Tensor out) {
  STD_TORCH_CHECK(out.is_contiguous(), "rmsnorm: the result must be contiguous");
  return out;
}

}  // namespace linked
