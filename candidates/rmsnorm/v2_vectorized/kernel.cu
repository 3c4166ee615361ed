// The way in: from a run-time element type to its kernels.
#include "kernel.h"

#include "fitting.cuh"

namespace mini_kv_rmsnorm_v2 {

extern template void launch_fitting<__half>(const Call&);
extern template void launch_fitting<__nv_bfloat16>(const Call&);
extern template void launch_fitting<float>(const Call&);

const char* launch_rmsnorm(
    Element element,
    const void* x,
    const void* weight,
    void* out,
    int64_t rows,
    int64_t hidden,
    double eps,
    void* stream) {
  if (rows == 0 || hidden == 0) {
    return nullptr;  // a grid of no blocks is a launch error
  }
  const Call call{x, weight, out, rows, hidden, eps, static_cast<cudaStream_t>(stream)};
  switch (element) {
    case Element::kFloat16:
      launch_fitting<__half>(call);
      break;
    case Element::kBFloat16:
      launch_fitting<__nv_bfloat16>(call);
      break;
    case Element::kFloat32:
      launch_fitting<float>(call);
      break;
    case Element::kFloat64:
      launch_fitting<double>(call);
      break;
    default:
      return "unknown element type";
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace mini_kv_rmsnorm_v2
