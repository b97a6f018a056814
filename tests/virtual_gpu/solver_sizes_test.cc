#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "virtual_gpu/solver_sizes.h"

#include <doctest/doctest.h>

// Answers of cuSOLVER 12.0.4 and cuSPARSE 12.6.3 themselves, on the stand-in driver.

using namespace memledger::virtual_gpu;

namespace {

enum class Routine {
  kLu,
  kQr,
  kCholesky,
  kSymmetricFactor,
  kReflectors,
  kApplyLeft,
  kApplyRight,
  kEigen,
  kEigenBatched,
  kEigenJacobi,
  kEigenJacobiBatched,
  kEigenGeneral,
  kSingular,
  kSingularJacobi,
  kSingularApproximate,
  kSingularJacobiBatched,
};

struct Answer {
  Routine routine;
  char type;
  int64_t m, n, k, batch;
  uint64_t bytes;
  bool is_blackwell;
};

constexpr Answer kAnswers[] = {
    {Routine::kLu, 'S', 1, 1, 0, 1, 768, false},
    {Routine::kLu, 'Z', 16384, 16384, 0, 1, 1179904, false},
    {Routine::kLu, 'C', 100, 17, 0, 1, 768, false},
    {Routine::kLu, 'D', 10, 64, 0, 1, 768, false},
    {Routine::kLu, 'D', 200, 500, 0, 1, 4096, false},
    {Routine::kLu, 'C', 3000, 500, 0, 1, 78080, false},
    {Routine::kLu, 'D', 8000, 8000, 0, 1, 314272, false},
    {Routine::kQr, 'S', 16384, 32, 0, 1, 1226112, false},
    {Routine::kQr, 'Z', 12288, 12288, 0, 1, 209715200, false},
    {Routine::kQr, 'S', 2, 500, 0, 1, 4145152, false},
    {Routine::kQr, 'C', 768, 4096, 0, 1, 37748736, false},
    {Routine::kQr, 'D', 4, 17, 0, 1, 6291456, false},
    {Routine::kQr, 'D', 129, 100, 0, 1, 6291456, false},
    {Routine::kQr, 'Z', 1025, 128, 0, 1, 12582912, false},
    {Routine::kCholesky, 'S', 1, 1, 0, 1, 160, false},
    {Routine::kCholesky, 'Z', 16384, 16384, 0, 1, 1048704, false},
    {Routine::kCholesky, 'C', 4, 4, 0, 1, 384, false},
    {Routine::kCholesky, 'D', 512, 512, 0, 1, 384, false},
    {Routine::kCholesky, 'C', 32, 32, 0, 1, 384, false},
    {Routine::kCholesky, 'D', 3, 3, 0, 1, 384, false},
    {Routine::kCholesky, 'C', 7, 7, 0, 1, 160, false},
    {Routine::kSymmetricFactor, 'S', 1, 1, 0, 1, 98432, false},
    {Routine::kSymmetricFactor, 'Z', 16384, 16384, 0, 1, 33555456, false},
    {Routine::kSymmetricFactor, 'Z', 256, 256, 0, 1, 263168, false},
    {Routine::kSymmetricFactor, 'Z', 255, 255, 0, 1, 262144, false},
    {Routine::kSymmetricFactor, 'D', 5, 5, 0, 1, 106624, false},
    {Routine::kSymmetricFactor, 'D', 48, 48, 0, 1, 106624, false},
    {Routine::kSymmetricFactor, 'Z', 7, 7, 0, 1, 176256, false},
    {Routine::kReflectors, 'S', 1, 1, 1, 1, 132224, false},
    {Routine::kReflectors, 'Z', 16384, 16384, 8192, 1, 100929536, false},
    {Routine::kReflectors, 'S', 3000, 3000, 17, 1, 678656, false},
    {Routine::kReflectors, 'D', 1024, 32, 32, 1, 526336, false},
    {Routine::kReflectors, 'D', 5, 1, 1, 1, 264448, false},
    {Routine::kReflectors, 'C', 3000, 1000, 1000, 1, 5253120, false},
    {Routine::kReflectors, 'D', 63, 63, 17, 1, 272896, false},
    {Routine::kApplyLeft, 'S', 1, 1, 1, 1, 266368, false},
    {Routine::kApplyLeft, 'Z', 16384, 8192, 4097, 1, 1477972480, false},
    {Routine::kApplyLeft, 'C', 31, 1000, 31, 1, 4949760, false},
    {Routine::kApplyLeft, 'Z', 2049, 1, 1, 1, 9487360, false},
    {Routine::kApplyLeft, 'D', 2048, 1024, 513, 1, 19433728, false},
    {Routine::kApplyLeft, 'Z', 1025, 128, 65, 1, 7435776, false},
    {Routine::kApplyLeft, 'D', 1, 1024, 1, 1, 4739328, false},
    {Routine::kApplyRight, 'S', 1, 1, 1, 1, 264320, false},
    {Routine::kApplyRight, 'Z', 16384, 8192, 4097, 1, 1410994688, false},
    {Routine::kApplyRight, 'Z', 1025, 1, 1, 1, 5284864, false},
    {Routine::kApplyRight, 'C', 1025, 1000, 501, 1, 8750336, false},
    {Routine::kApplyRight, 'S', 200, 1000, 501, 1, 3476992, false},
    {Routine::kApplyRight, 'Z', 8192, 8192, 64, 1, 43192320, false},
    {Routine::kApplyRight, 'D', 31, 500, 251, 1, 2098176, false},
    {Routine::kEigen, 'S', 1, 1, 0, 1, 265496, false},
    {Routine::kEigen, 'Z', 16384, 16384, 0, 1, 17213689008, false},
    {Routine::kEigen, 'Z', 3, 3, 0, 1, 1086880, false},
    {Routine::kEigen, 'C', 768, 768, 0, 1, 19918488, false},
    {Routine::kEigen, 'C', 15, 15, 0, 1, 622224, false},
    {Routine::kEigen, 'C', 65, 65, 0, 1, 1025712, false},
    {Routine::kEigen, 'Z', 255, 255, 0, 1, 7304352, false},
    {Routine::kEigen, 'S', 512, 512, 0, 1, 4981132, false},
    {Routine::kEigen, 'S', 512, 512, 0, 1, 4981132, false},
    {Routine::kEigen, 'S', 513, 513, 0, 1, 4996504, false},
    {Routine::kEigen, 'S', 513, 513, 0, 1, 4996504, false},
    {Routine::kEigen, 'S', 16384, 16384, 0, 1, 4303422348, false},
    {Routine::kEigen, 'S', 16384, 16384, 0, 1, 4303422348, false},
    {Routine::kEigenBatched, 'S', 1, 1, 0, 2, 530736, false},
    {Routine::kEigenBatched, 'Z', 1024, 1024, 0, 100000, 6971603200640, false},
    {Routine::kEigenBatched, 'Z', 257, 257, 0, 3, 22132128, false},
    {Routine::kEigenBatched, 'D', 513, 513, 0, 100000, 999224800384, false},
    {Routine::kEigenBatched, 'S', 48, 48, 0, 3, 1312164, false},
    {Routine::kEigenBatched, 'Z', 513, 513, 0, 100, 1998450688, false},
    {Routine::kEigenBatched, 'D', 17, 17, 0, 16, 10169472, false},
    {Routine::kEigenBatched, 'S', 16, 16, 0, 30000, 9429600320, false},
    {Routine::kEigenBatched, 'S', 16, 16, 0, 30000, 9429600320, false},
    {Routine::kEigenJacobi, 'S', 1, 1, 0, 1, 8220, false},
    {Routine::kEigenJacobi, 'Z', 16384, 16384, 0, 1, 5502930944, false},
    {Routine::kEigenJacobi, 'C', 8, 8, 0, 1, 17000, false},
    {Routine::kEigenJacobi, 'S', 1023, 1023, 0, 1, 4341888, false},
    {Routine::kEigenJacobi, 'C', 1000, 1000, 0, 1, 8311360, false},
    {Routine::kEigenJacobi, 'Z', 1500, 1500, 0, 1, 36952560, false},
    {Routine::kEigenJacobi, 'S', 31, 31, 0, 1, 12180, false},
    {Routine::kEigenJacobiBatched, 'S', 1, 1, 0, 2, 12336, false},
    {Routine::kEigenJacobiBatched, 'Z', 128, 128, 0, 100000, 33179217408, false},
    {Routine::kEigenJacobiBatched, 'D', 256, 256, 0, 1000, 593938240, false},
    {Routine::kEigenJacobiBatched, 'Z', 15, 15, 0, 3, 77888, false},
    {Routine::kEigenJacobiBatched, 'S', 257, 257, 0, 2, 611632, false},
    {Routine::kEigenJacobiBatched, 'D', 256, 256, 0, 2, 1198096, false},
    {Routine::kEigenJacobiBatched, 'C', 65, 65, 0, 16, 959264, false},
    {Routine::kEigenGeneral, 'S', 1, 1, 0, 1, 132608, false},
    {Routine::kEigenGeneral, 'Z', 16384, 16384, 0, 1, 4295885312, false},
    {Routine::kEigenGeneral, 'Z', 511, 511, 0, 1, 4207104, false},
    {Routine::kEigenGeneral, 'C', 2049, 2049, 0, 1, 33645056, false},
    {Routine::kEigenGeneral, 'S', 640, 640, 0, 1, 1649152, false},
    {Routine::kEigenGeneral, 'D', 256, 256, 0, 1, 925184, false},
    {Routine::kEigenGeneral, 'C', 8000, 8000, 0, 1, 512224256, false},
    {Routine::kSingular, 'S', 1, 1, 0, 1, 264832, false},
    {Routine::kSingular, 'Z', 16384, 16384, 0, 1, 12954112000, false},
    {Routine::kSingular, 'Z', 257, 17, 0, 1, 13262848, false},
    {Routine::kSingular, 'D', 1023, 500, 0, 1, 20918528, false},
    {Routine::kSingular, 'Z', 2049, 64, 0, 1, 21374464, false},
    {Routine::kSingular, 'S', 1023, 4, 0, 1, 3311104, false},
    {Routine::kSingular, 'S', 511, 128, 0, 1, 4390528, false},
    {Routine::kSingularJacobi, 'S', 1, 1, 0, 1, 12544, false},
    {Routine::kSingularJacobi, 'Z', 16384, 16384, 0, 1, 8623775744, false},
    {Routine::kSingularJacobi, 'Z', 65, 100, 0, 1, 12689408, false},
    {Routine::kSingularJacobi, 'D', 33, 512, 0, 1, 6427392, false},
    {Routine::kSingularJacobi, 'S', 16, 128, 0, 1, 3154176, false},
    {Routine::kSingularJacobi, 'Z', 6000, 4, 0, 1, 75261952, false},
    {Routine::kSingularJacobi, 'Z', 33, 32, 0, 1, 12583936, false},
    {Routine::kSingularApproximate, 'S', 1, 1, 1, 2, 24800, false},
    {Routine::kSingularApproximate, 'Z', 1000, 512, 512, 1000, 32329792896, false},
    {Routine::kSingularApproximate, 'Z', 2, 2, 2, 16, 284224, false},
    {Routine::kSingularApproximate, 'D', 1000, 512, 512, 1000, 16166944448, false},
    {Routine::kSingularApproximate, 'C', 64, 48, 48, 2, 3674976, false},
    {Routine::kSingularApproximate, 'D', 64, 1, 1, 1000, 8776224, false},
    {Routine::kSingularApproximate, 'D', 16, 32, 16, 1000, 29968224, false},
    {Routine::kSingularJacobiBatched, 'S', 1, 1, 0, 2, 3968, false},
    {Routine::kSingularJacobiBatched, 'Z', 1000, 512, 0, 1000, 15872, false},
    {Routine::kSingularJacobiBatched, 'Z', 64, 16, 0, 2, 15872, false},
    {Routine::kSingularJacobiBatched, 'Z', 33, 16, 0, 16, 15872, false},
    {Routine::kSingularJacobiBatched, 'D', 8, 1, 0, 2, 7936, false},
    {Routine::kSingularJacobiBatched, 'Z', 256, 16, 0, 1000, 15872, false},
    {Routine::kSingularJacobiBatched, 'D', 512, 512, 0, 3, 7936, false},
    {Routine::kEigenBatched, 'S', 32, 32, 0, 2, 21144, true},
    {Routine::kEigenBatched, 'C', 32, 32, 0, 100, 1698752, true},
    {Routine::kEigenBatched, 'S', 4, 4, 0, 100, 423840, true},
    {Routine::kEigenBatched, 'D', 4, 4, 0, 3, 33528, true},
    {Routine::kQr, 'S', 16384, 16384, 0, 1, 69206016, false},
    {Routine::kQr, 'D', 16384, 16384, 0, 1, 138412032, false},
};

WorkSize size_of(const Answer& a) {
  switch (a.routine) {
    case Routine::kLu:
      return lu_work(a.m, a.n);
    case Routine::kQr:
      return qr_work(a.m, a.n);
    case Routine::kCholesky:
      return cholesky_work(a.n);
    case Routine::kSymmetricFactor:
      return symmetric_factor_work(a.n);
    case Routine::kReflectors:
      return reflectors_work(a.m, a.n, a.k);
    case Routine::kApplyLeft:
      return apply_reflectors_work(a.m, a.n, a.k, true);
    case Routine::kApplyRight:
      return apply_reflectors_work(a.m, a.n, a.k, false);
    case Routine::kEigen:
      return eigen_work(a.n);
    case Routine::kEigenBatched:
      return eigen_batched_work(a.n, a.batch, a.is_blackwell);
    case Routine::kEigenJacobi:
      return eigen_jacobi_work(a.n);
    case Routine::kEigenJacobiBatched:
      return eigen_jacobi_batched_work(a.n, a.batch);
    case Routine::kEigenGeneral:
      return eigen_general_work(a.n);
    case Routine::kSingular:
      return singular_values_work(a.m, a.n);
    case Routine::kSingularJacobi:
      return singular_values_jacobi_work(a.m, a.n);
    case Routine::kSingularApproximate:
      return singular_values_approximate_work(a.m, a.n, a.batch, a.type == 'D' || a.type == 'Z');
    case Routine::kSingularJacobiBatched:
      return singular_values_jacobi_batched_work();
  }
  return {};
}

TEST_CASE("cuSOLVER's own answers lie between the ends") {
  for (const Answer& answer : kAnswers) {
    const uint64_t element = answer.type == 'S' ? 4 : answer.type == 'Z' ? 16 : 8;
    const WorkSize size = size_of(answer);
    CAPTURE(static_cast<int>(answer.routine));
    CAPTURE(answer.type);
    CAPTURE(answer.m);
    CAPTURE(answer.n);
    CAPTURE(answer.batch);
    CHECK(size.least * element <= answer.bytes);
    CHECK(size.most * element >= answer.bytes);
  }
}

TEST_CASE("eigenvalues, the largest of work areas, are known within a percent") {
  for (const int64_t n : {16, 100, 512, 4096, 16384}) {
    const WorkSize one = eigen_work(n), many = eigen_batched_work(n, 1000, false);
    CHECK(static_cast<double>(one.most) <= 1.01 * static_cast<double>(one.least));
    CHECK(static_cast<double>(many.most) <= 1.01 * static_cast<double>(many.least));
  }
}

TEST_CASE("cuSPARSE's own answers lie between the ends") {
  const struct {
    int64_t rows, entries;
    uint64_t bytes;
  } products[] = {
      {1000000, 30000000, 10000007},
      {100, 100, 47},
      {100, 3000, 11},
      {100, 3000, 574},
      {100, 3000, 527},
      {10000, 300000, 80022},
      {1000000, 30000000, 0},
      {100, 100, 23},
      {100, 3000, 527},
  };
  for (const auto& answer : products) {
    const WorkSize size = sparse_product_work(answer.rows, answer.entries);
    CHECK(size.least <= answer.bytes);
    CHECK(size.most >= answer.bytes);
  }
  const struct {
    int64_t rows, entries, right_sides, value_bytes;
    uint64_t bytes;
  } solves[] = {
      {1000000, 30000000, 0, 8, 556000258},
      {10000, 10000, 0, 8, 920258},
      {10000, 300000, 0, 8, 5560258},
      {1000000, 1000000, 0, 8, 92000258},
      {100, 3000, 0, 8, 56074},
      {1000000, 30000000, 512, 8, 4764000258},
      {100, 100, 512, 8, 428862},
      {1000000, 1000000, 1, 8, 92000258},
      {100, 3000, 64, 8, 107274},
      {10000, 10000, 512, 4, 22240242},
      {1000000, 30000000, 512, 8, 4764000258},
      {10000, 300000, 512, 4, 24560242},
  };
  for (const auto& answer : solves) {
    const WorkSize size =
        sparse_solve_work(answer.rows, answer.entries, answer.right_sides, answer.value_bytes);
    CAPTURE(answer.bytes);
    CHECK(size.least <= answer.bytes);
    CHECK(size.most >= answer.bytes);
  }
  const struct {
    int64_t entries;
    uint64_t bytes;
  } sorts[] = {
      {100, 2688},         {100, 3200},         {10000, 161024},         {10000, 201088},
      {1000000, 16008704}, {1000000, 20008832}, {100000000, 1600782720}, {100000000, 2000782848},
  };
  for (const auto& answer : sorts) {
    CHECK(sparse_sort_work(answer.entries).least <= answer.bytes);
    CHECK(sparse_sort_work(answer.entries).most >= answer.bytes);
  }
}

}  // namespace
