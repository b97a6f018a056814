#pragma once

#include <cstdint>

namespace memledger::virtual_gpu {

// Lower and upper bound of a work area of NVIDIA's dense and sparse solvers.
// docs/virtual_gpu_workspaces.md has the rules. They were checked against the answers of cuSOLVER
// 12.0.4 and cuSPARSE 12.6.3 (CUDA 13.0) on the stand-in driver: some 50 000 sizes of up to 16 384
// rows, on h100, a100, t4, rtx4090 and b200. Every answer was within these bounds.
struct WorkSize {
  uint64_t least = 0;
  uint64_t most = 0;
};

// In elements of the matrix. m, n: rows and columns; k: reflectors.
WorkSize lu_work(int64_t m, int64_t n);
WorkSize qr_work(int64_t m, int64_t n);
WorkSize cholesky_work(int64_t n);
WorkSize symmetric_factor_work(int64_t n);
WorkSize reflectors_work(int64_t m, int64_t n, int64_t k);  // orgqr
WorkSize apply_reflectors_work(int64_t m, int64_t n, int64_t k, bool from_left);
WorkSize eigen_work(int64_t n);
// `is_blackwell`: from 10.0 on small batches take less.
WorkSize eigen_batched_work(int64_t n, int64_t batch, bool is_blackwell);
WorkSize eigen_jacobi_work(int64_t n);
WorkSize eigen_jacobi_batched_work(int64_t n, int64_t batch);
WorkSize eigen_general_work(int64_t n);
WorkSize singular_values_work(int64_t m, int64_t n);
WorkSize singular_values_jacobi_work(int64_t m, int64_t n);
WorkSize singular_values_jacobi_batched_work();
// `is_double`: half as many as of single precision.
WorkSize singular_values_approximate_work(int64_t m, int64_t n, int64_t batch, bool is_double);

// In bytes.
WorkSize sparse_product_work(int64_t rows, int64_t entries);  // with something dense
WorkSize sparse_solve_work(int64_t rows, int64_t entries, int64_t right_sides, int64_t value_bytes);
WorkSize sparse_sort_work(int64_t entries);

}  // namespace memledger::virtual_gpu
