#include "fitting.cuh"

namespace mini_kv_rmsnorm_v2 {

template void launch_fitting<__half>(const Call&);

}  // namespace mini_kv_rmsnorm_v2
