#include "virtual_gpu/solver_sizes.h"

#include <algorithm>

namespace memledger::virtual_gpu {
namespace {

uint64_t round_up(double value) { return static_cast<uint64_t>(value) + 1; }
uint64_t round_down(double value) { return value > 0 ? static_cast<uint64_t>(value) : 0; }

WorkSize between(double least, double most) { return {round_down(least), round_up(most)}; }

// What one matrix takes, exact but for alignment. Small ones have tables of 64 Ki elements.
double eigen_elements(double n) {
  const double of_small = 65536 + 3 * n * n + 768 * n + 4 - (n <= 32 ? n : 0);
  return std::max(of_small, 4 * n * n + 127 * n + 32963);
}

}  // namespace

WorkSize lu_work(int64_t rows, int64_t columns) {
  const double m = static_cast<double>(rows), n = static_cast<double>(columns);
  const double least = std::min(m, n), most = std::max(m, n);
  return between(8 + 0.5 * least, 9600 + 0.2 * most + (0.13 * least * least + 0.98 * m * n) / 1024);
}

WorkSize qr_work(int64_t rows, int64_t columns) {
  constexpr double kLeast = 786432;
  const double n = static_cast<double>(columns);
  const double by_columns = 1024 * n + 524288;
  const double most = std::max(kLeast, by_columns) + 64;
  // For very large ones it depends on the device and on the rows.
  return rows > 8192 ? between(305700 + 24 * n, most)
                     : between(std::max(kLeast, std::min(by_columns, 8912896.0)), most);
}

WorkSize cholesky_work(int64_t columns) {
  const double n = static_cast<double>(columns);
  return between(8, 128 + 0.06 * n + n * n / 1000);
}

WorkSize symmetric_factor_work(int64_t columns) {
  const double n = static_cast<double>(columns);
  return between(64 * n, 24700 + 128 * n);
}

WorkSize reflectors_work(int64_t rows, int64_t columns, int64_t reflectors) {
  const double m = static_cast<double>(rows), n = static_cast<double>(columns),
               k = static_cast<double>(reflectors);
  return between(7300 + 2.5 * m + n + 380 * k, 33000 + 128 * m + 257 * n);
}

WorkSize apply_reflectors_work(int64_t rows, int64_t columns, int64_t reflectors, bool from_left) {
  const double m = static_cast<double>(rows), n = static_cast<double>(columns),
               k = static_cast<double>(reflectors);
  if (from_left)
    return between(65000 + 256 * m + 480 * n + 65 * k + (0.5 * n + 0.99 * m) * k,
                   66000 + 257 * m + 514 * n + (1.01 * n + m) * k);
  return between(65600 + 224 * m + 1.1 * k + 1.4 * n * k,
                 66000 + 260 * m + k + (1.51 * n + 0.98 * m) * k);
}

WorkSize eigen_work(int64_t n) {
  const double elements = eigen_elements(static_cast<double>(n));
  return between(elements - 8, elements + 128);
}

WorkSize eigen_batched_work(int64_t n, int64_t batch, bool is_blackwell) {
  const double b = static_cast<double>(batch);
  const double elements = eigen_elements(static_cast<double>(n));
  return between(is_blackwell ? 0 : b * (elements - 64), b * elements + 128);
}

WorkSize eigen_jacobi_work(int64_t columns) {
  const double n = static_cast<double>(columns);
  if (columns <= 2048) return between(1020 + 33 * n + n * n, 2100 + 34 * n + 1.004 * n * n);
  return between(n * n, 2100 + 6656 * n + n * n);
}

WorkSize eigen_jacobi_batched_work(int64_t columns, int64_t batch) {
  const double n = static_cast<double>(columns), b = static_cast<double>(batch);
  const double elements = n * n + 2 * n + 2 + static_cast<double>((columns + 31) / 32 * 32 * 32);
  return between(b * (elements - 1), b * elements + 5200);
}

WorkSize eigen_general_work(int64_t columns) {
  const double n = static_cast<double>(columns);
  return between(33000 + 0.88 * n * n, 41100 + 69 * n + n * n);
}

WorkSize singular_values_work(int64_t rows, int64_t columns) {
  const double m = static_cast<double>(rows), n = static_cast<double>(columns);
  if (rows == columns) return between(65700 + 260 * n + 3 * n * n, 66100 + 261 * n + 3 * n * n);
  return between(3 * m * n + 60 * n, 820000 + 212 * m + 3.001 * m * n + 3 * n * n);
}

WorkSize singular_values_jacobi_work(int64_t rows, int64_t columns) {
  const double m = static_cast<double>(rows), n = static_cast<double>(columns);
  if (rows == columns) return between(1000 + 64 * n + 2 * n * n, 3200 + 66 * n + 2.004 * n * n);
  if (rows > columns)
    return between(130000 + 0.5 * (n * n + m * n), 786500 + 729 * m + 1.75 * n * n + 1.02 * m * n);
  return between(480000 + 0.9 * m * n,
                 787000 + 243 * n + 0.09 * n * n + 2.11 * m * n + 1.08 * m * m);
}

WorkSize singular_values_jacobi_batched_work() { return {992, 992}; }

WorkSize singular_values_approximate_work(int64_t rows, int64_t columns, int64_t batch,
                                          bool is_double) {
  const double m = static_cast<double>(rows), n = static_cast<double>(columns),
               b = static_cast<double>(batch);
  const double times = is_double ? 1 : 2;
  if (columns <= 32) {
    return between(times * (1027 + b * (1025 + 4.5 * n + 2 * n * n + m * n)),
                   times * (1100 + b * (1026.2 + 5.1 * n + 2.01 * n * n + 1.94 * m * n)));
  }
  return between(times * (54 + b * (65539 + 770.5 * n + 4 * n * n + m * n)),
                 times * (100 + b * (68200 + 705 * n + 4.37 * n * n + 1.05 * m * n)));
}

WorkSize sparse_product_work(int64_t rows, int64_t entries) {
  return {0, static_cast<uint64_t>(8 * rows + entries / 2 + 8192)};
}

WorkSize sparse_solve_work(int64_t rows, int64_t entries, int64_t right_sides,
                           int64_t value_bytes) {
  const int64_t of_sides = right_sides * rows * value_bytes;
  const int64_t of_row = right_sides > 0 ? 196 : 84;
  return {static_cast<uint64_t>(48 * rows + 8 * entries + of_sides),
          static_cast<uint64_t>(of_row * rows + (value_bytes + 8) * entries + of_sides + 512)};
}

WorkSize sparse_sort_work(int64_t entries) {
  // Radix sorts, whose counters grow with what is sorted.
  return {static_cast<uint64_t>(16 * entries),
          static_cast<uint64_t>(20 * entries + entries / 64 + 8192)};
}

}  // namespace memledger::virtual_gpu
