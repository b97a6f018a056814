// Operators whose results have sizes that only the device knows, under each policy: the expected
// sizes are written out, for inputs of 6 400 elements and less.
//
//   size_reads_test_program         the checks, for the specification's reads=
//   size_reads_test_program --list  a program whose list at exit size_reads_list_test.sh looks at;
//                                   so are --numbers and --unbounded
#define DOCTEST_CONFIG_IMPLEMENT
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIndexing.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/doctest_beside_torch.h"

namespace {

const c10::Device kCuda0(c10::kCUDA, 0);

enum class Policy { kNone, kAll, kQuarter, kVaried };

Policy policy() {
  const char* const text = std::getenv("MEMLEDGER_VIRTUAL_GPU");
  const std::string specification = text == nullptr ? "" : text;
  if (specification.find("reads=none") != std::string::npos) return Policy::kNone;
  if (specification.find("reads=varied") != std::string::npos) return Policy::kVaried;
  if (specification.find("reads=0.25") != std::string::npos) return Policy::kQuarter;
  return Policy::kAll;
}

int64_t by_policy(int64_t none, int64_t quarter, int64_t all) {
  return policy() == Policy::kNone ? none : policy() == Policy::kQuarter ? quarter : all;
}

at::TensorOptions on_cuda(at::ScalarType type) { return at::TensorOptions(kCuda0).dtype(type); }

// Nobody knows what was in the memory before; random numbers would be known.
at::Tensor unknown(at::IntArrayRef sizes) { return at::empty(sizes, on_cuda(at::kFloat)); }
at::Tensor unknown_mask(at::IntArrayRef sizes) { return at::gt(unknown(sizes), 0.5); }
at::Tensor unknown_integers(at::IntArrayRef sizes) { return at::empty(sizes, on_cuda(at::kLong)); }

at::Tensor with_mask(const at::Tensor& tensor, const at::Tensor& mask) {
  return tensor.index({at::indexing::TensorIndex(mask)});
}

int64_t requested_bytes(bool peak) {
  const auto statistics = c10::cuda::CUDACachingAllocator::getDeviceStats(0).requested_bytes[0];
  return peak ? statistics.peak : statistics.current;
}

int64_t true_elements(const at::Tensor& mask) { return at::nonzero(mask).size(0); }

// Another share of each mask of 6 400 elements is true.
void check_varied_sizes() {
  std::vector<int64_t> sizes;
  std::vector<at::Tensor> masks;
  for (int i = 0; i < 40; ++i) {
    masks.push_back(unknown_mask({64, 100}));
    sizes.push_back(true_elements(masks.back()));
  }
  std::vector<int64_t> sorted = sizes;
  std::sort(sorted.begin(), sorted.end());
  REQUIRE(sorted.front() > 0);
  CHECK(sorted.back() <= 6400);
  // Drawn evenly: of 40 shares some are small and some large.
  CHECK(sorted.front() < 1600);
  CHECK(sorted.back() > 4800);
  CHECK(std::unique(sorted.begin(), sorted.end()) - sorted.begin() > 30);
  for (size_t i = 0; i < masks.size(); ++i) {
    // A mask that is read again says the same, whatever it is read for.
    CHECK(true_elements(masks[i]) == sizes[i]);
    CHECK(with_mask(unknown({64, 100, 2}), masks[i]).size(0) == sizes[i]);
  }
  // Once it is written to it may say something else.
  masks[0].logical_not_();
  masks[1].logical_not_();
  CHECK((true_elements(masks[0]) != sizes[0] || true_elements(masks[1]) != sizes[1]));
  // Nothing is kept alive, and others get other shares at the same address.
  const int64_t before = requested_bytes(false);
  const int64_t last = sizes.back();
  const at::Tensor values = unknown({64, 100});
  std::vector<int64_t> later;
  for (int i = 0; i < 4; ++i) later.push_back(true_elements(at::gt(values, 0.5)));
  CHECK(std::count(later.begin(), later.end(), later[0]) < 4);
  CHECK(later[0] != last);
  masks.clear();
  CHECK(requested_bytes(false) < before);
  // What is small is whole.
  CHECK(at::nonzero(unknown_mask({64})).size(0) == 64);
}

TEST_CASE("sizes that differ each time") { check_varied_sizes(); }

TEST_CASE("operators with masks") {
  const at::Tensor x = unknown({64, 100});
  const at::Tensor mask = unknown_mask({64, 100});
  const int64_t size = by_policy(0, 1600, 6400);
  CHECK(at::nonzero(mask).sizes() == at::IntArrayRef({size, 2}));
  CHECK(at::argwhere(x).sizes() == at::IntArrayRef({size, 2}));
  CHECK(at::where(mask).at(1).sizes() == at::IntArrayRef({size}));
  CHECK(at::masked_select(x, mask).sizes() == at::IntArrayRef({size}));
  CHECK(with_mask(x, mask).sizes() == at::IntArrayRef({size}));
  CHECK(x.to_sparse()._nnz() == size);
  CHECK(at::nonzero_static(mask, 11).sizes() == at::IntArrayRef({11, 2}));

  SUBCASE("a share of up to 1024 elements is all of them") {
    CHECK(at::nonzero(unknown_mask({1024})).size(0) == by_policy(0, 1024, 1024));
    CHECK(at::nonzero(unknown_mask({1025})).size(0) == by_policy(0, 257, 1025));
    CHECK(at::nonzero(unknown_mask({0, 3})).sizes() == at::IntArrayRef({0, 2}));
  }
  SUBCASE("two masks agree") {
    const at::Tensor rows = unknown_mask({64}), columns = unknown_mask({100});
    CHECK(x.index({rows, columns}).sizes() == at::IntArrayRef({by_policy(0, 64, 64)}));
  }
  SUBCASE("a mask beside an index has as many") {
    const at::Tensor seven = at::zeros({7}, on_cuda(at::kLong));
    CHECK(x.index({unknown_mask({64}), seven}).sizes() == at::IntArrayRef({7}));
  }
  SUBCASE("a mask that is written to has as many as there are values") {
    at::Tensor y = x.clone();
    y.index_put_({mask}, unknown({300}));
    y.index_put_({unknown_mask({64})}, unknown({9, 100}));
    y.index_put_({at::indexing::TensorIndex(at::indexing::Slice()), unknown_mask({100})},
                 unknown({64, 12}));
    y.index_put_({mask}, unknown({1}));
    CHECK_THROWS(y.index_put_({unknown_mask({64})}, unknown({65, 100})));
  }
}

TEST_CASE("boolean indexing and its backward") {
  const at::Tensor x = unknown({64, 100}).requires_grad_();
  with_mask(x, unknown_mask({64, 100})).sum().backward();
  CHECK(x.grad().sizes() == x.sizes());
}

TEST_CASE("operators that look for different values") {
  const at::Tensor x = unknown_integers({4000});
  const int64_t size = by_policy(0, 1000, 4000);
  const auto [values, inverse, counts] = at::_unique2(x, true, true, true);
  CHECK(values.sizes() == at::IntArrayRef({size}));
  CHECK(inverse.sizes() == at::IntArrayRef({4000}));
  CHECK(counts.sizes() == at::IntArrayRef({size}));
  CHECK(std::get<0>(at::unique_consecutive(x)).numel() == size);
  CHECK(std::get<0>(at::unique_consecutive(unknown_mask({4000}))).numel() == size);
  // There are two bools.
  CHECK(std::get<0>(at::_unique2(unknown_mask({4000}))).numel() == by_policy(1, 2, 2));
  const at::Tensor rows = unknown_integers({2000, 2});
  CHECK(std::get<0>(at::unique_dim(rows, 0)).sizes() ==
        at::IntArrayRef({by_policy(0, 500, 2000), 2}));
  CHECK(std::get<0>(at::unique_consecutive(rows, false, true, 0)).sizes() ==
        at::IntArrayRef({by_policy(0, 500, 2000), 2}));
  const at::Tensor sparse = at::sparse_coo_tensor(unknown_integers({2, 2000}), unknown({2000}),
                                                  {50, 50}, on_cuda(at::kFloat));
  CHECK(sparse.coalesce()._nnz() == by_policy(0, 500, 2000));
}

TEST_CASE("operators without a largest size") {
  const at::Tensor x = unknown_integers({4000});
  CHECK(at::repeat_interleave(x).numel() == by_policy(0, 1000, 4000));
  CHECK(at::repeat_interleave(x, std::optional<int64_t>(7777)).numel() == 7777);
  CHECK(at::bincount(x, {}, 64).numel() == 64);
  CHECK(at::one_hot(x, 64).sizes() == at::IntArrayRef({4000, 64}));
}

// Their sizes are the program's: what they read decides none.
TEST_CASE("operators whose results have known sizes, whatever they read") {
  const at::Tensor x = unknown({300});
  CHECK(at::histc(x, 17).numel() == 17);
  CHECK(at::combinations(x.slice(0, 0, 20)).sizes() == at::IntArrayRef({190, 2}));
  const at::Tensor bags = at::arange(0, 300, 30, on_cuda(at::kLong));
  CHECK(std::get<0>(at::embedding_bag(unknown({50, 8}), unknown_integers({300}), bags)).sizes() ==
        at::IntArrayRef({10, 8}));
  // Up to 2.13 LibTorch selects them by a mask of all pairs, which is too large to be known.
  CHECK(at::combinations(x).size(0) == (LIBTORCH_MINOR >= 14 ? 44850 : by_policy(0, 22500, 90000)));
}

TEST_CASE("known inputs have their exact sizes, whatever the policy") {
  const at::Tensor x = at::arange(12, at::kLong).to(kCuda0);
  const at::Tensor mask = at::ge(x, 7);
  CHECK(at::nonzero(mask).sizes() == at::IntArrayRef({5, 1}));
  CHECK(at::nonzero(mask)[4].item<int64_t>() == 11);
  CHECK(at::nonzero(at::lt(x, 0)).sizes() == at::IntArrayRef({0, 1}));
  CHECK(with_mask(x, mask).sizes() == at::IntArrayRef({5}));
  // The mask is known, what it selects is not.
  CHECK(with_mask(unknown({12, 3}), mask).sizes() == at::IntArrayRef({5, 3}));
  const at::Tensor few = at::remainder(x, 3);
  CHECK(std::get<0>(at::_unique2(few)).numel() == 3);
  CHECK(std::get<0>(at::_unique2(mask)).numel() == 2);
  CHECK(std::get<0>(at::unique_consecutive(at::ge(x, 7))).numel() == 2);
  CHECK(std::get<0>(at::unique_dim(few.view({6, 2}), 0)).size(0) == 3);
  CHECK(at::repeat_interleave(few).numel() == 12);
  CHECK(at::bincount(x).numel() == 12);
  CHECK(at::one_hot(few).sizes() == at::IntArrayRef({12, 3}));
}

TEST_CASE("what is assumed to be true has coordinates") {
  const at::Tensor places = at::nonzero(unknown_mask({3, 5}));
  if (policy() == Policy::kNone) {
    CHECK(places.size(0) == 0);
    return;
  }
  REQUIRE(places.sizes() == at::IntArrayRef({15, 2}));
  CHECK(places[7][0].item<int64_t>() == 1);
  CHECK(places[7][1].item<int64_t>() == 2);
  CHECK(at::where(unknown_mask({9})).at(0)[8].item<int64_t>() == 8);
}

TEST_CASE("what nonzero takes") {
  const at::Tensor mask = unknown_mask({1000, 20});
  const int64_t before = requested_bytes(false);
  const int64_t size = by_policy(0, 5000, 20000);
  const at::Tensor result = at::nonzero(mask);
  CHECK(requested_bytes(false) - before == size * 2 * 8);
}

TEST_CASE("an operator that throws leaves nothing to the next") {
  at::Tensor of_wrong_type = at::empty({0}, on_cuda(at::kInt));
  CHECK_THROWS(at::nonzero_out(of_wrong_type, unknown_mask({64})));
  CHECK(unknown_integers({1}).to(at::kInt).item<int32_t>() == 0);
}

TEST_CASE("what is read elsewhere stays as it is") {
  const at::Tensor x = unknown_integers({1});
  at::nonzero(unknown_mask({64}));
  CHECK(x.item<int64_t>() == 0);
  CHECK(x.to(at::kInt).item<int32_t>() == 0);
  CHECK(x.cpu().item<int64_t>() == 0);
  CHECK_FALSE(at::equal(x, x.clone()));
}

TEST_CASE("a check finds numbers finite, and a comparison sees an ordinary fraction") {
  const at::Tensor x = unknown({64, 100});
  CHECK(at::isfinite(x).all().item<bool>());
  CHECK_FALSE(at::isnan(x).any().item<bool>());
  CHECK_FALSE(at::isinf(x.sum()).logical_or(at::isnan(x.sum())).item<bool>());
  CHECK_FALSE(x.sum().ne(x.sum()).item<bool>());
  CHECK(x.gt(0.4).any().item<bool>());
  CHECK_FALSE(x.lt(0).any().item<bool>());
  CHECK(x.gt(0.4).sum().item<int64_t>() == 6400);
  CHECK(x.mean().item<float>() == 1);
  CHECK(x.cpu().eq(1).all().item<bool>());
  // What a check does not find is true nowhere, whatever the policy.
  CHECK_FALSE(at::isnan(x).cpu().any().item<bool>());
  const at::Tensor scale = at::ones({}, on_cuda(at::kFloat));
  at::Tensor found = at::zeros({}, on_cuda(at::kFloat));
  at::_amp_foreach_non_finite_check_and_unscale_({x}, found, scale);
  CHECK(found.to(at::kDouble).item<double>() == 0);
}

TEST_CASE("elements of a mask that the host takes are sizes, too") {
  const at::Tensor on_host = unknown_mask({64, 100}).cpu();
  CHECK(on_host.sum().item<int64_t>() == by_policy(0, 1600, 6400));
  // What is known of it stays.
  at::Tensor partly = unknown_mask({2000});
  partly.narrow(0, 0, 1000).fill_(false);
  const int64_t trues = partly.cpu().sum().item<int64_t>();
  CHECK(trues == by_policy(0, 0, 1000));
}

TEST_CASE("different values, and how often each is there") {
  const at::Tensor x = at::arange(4).repeat_interleave(4).to(kCuda0);
  const auto [values, inverse, counts] = at::_unique2(x, true, false, true);
  CHECK(at::equal(values.cpu(), at::arange(4)));
  CHECK(at::equal(counts.cpu(), at::full({4}, 4, at::kLong)));
  CHECK(inverse.numel() == 0);
  const auto [same, places, none] = at::_unique2(x, true, true, false);
  CHECK(at::equal(places.cpu(), x.cpu()));
}

TEST_CASE("threads do not see each other's reads") {
  std::vector<std::thread> threads;
  std::vector<int> failures(16);
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([t, &failures] {
      for (int i = 0; i < 50; ++i) {
        const int64_t elements = 1 + t * 50 + i;
        if (at::nonzero(unknown_mask({elements})).size(0) != by_policy(0, elements, elements))
          ++failures[static_cast<size_t>(t)];
        if (unknown_integers({1}).to(at::kInt).item<int32_t>() != 0)
          ++failures[static_cast<size_t>(t)];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : failures) CHECK(count == 0);
}

void read_for_a_list() {
  const at::Tensor mask = unknown_mask({1000, 20});
  for (int i = 0; i < 3; ++i) at::nonzero(mask);
  with_mask(unknown({1000, 20}), mask);
  at::bincount(unknown_integers({100}));
  if (!mask.any().item<bool>()) std::abort();
  if (unknown_integers({1}).item<int64_t>() > 1) std::abort();
}

// What the program takes for sizes itself.
void read_numbers() {
  const at::Tensor lengths = unknown_integers({6});
  at::zeros({lengths.sum().item<int64_t>() + 1}, on_cuda(at::kFloat));
  at::arange(lengths.max().item<int64_t>(), on_cuda(at::kLong));
  unknown({64}).slice(0, 0, lengths[0].item<int64_t>());
  const at::Tensor on_host = lengths.cpu();  // for split(), tensor_split() …
  at::tensor_split(unknown({64}), on_host.clamp(0, 1), 0);
  // Neither a number nor a size.
  if (lengths.gt(1000).any().item<bool>() || unknown({1}).item<float>() > 2) std::abort();
  if (at::is_nonzero(lengths.min())) std::abort();
  unknown({8}).cpu();
  // A number that is known is in no list.
  at::zeros({at::arange(5, on_cuda(at::kLong)).max().item<int64_t>()}, on_cuda(at::kFloat));
}

void read_unbounded() {
  const at::Tensor x = unknown_integers({100});
  at::repeat_interleave(x);
  at::bincount(x);
  at::one_hot(x);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--list") {
    read_for_a_list();
    return 0;
  }
  if (argc > 1 && std::string(argv[1]) == "--numbers") {
    read_numbers();
    return 0;
  }
  if (argc > 1 && std::string(argv[1]) == "--unbounded") {
    read_unbounded();
    return 0;
  }
  doctest::Context context(argc, argv);
  context.setOption(policy() == Policy::kVaried ? "test-case" : "test-case-exclude",
                    "sizes that differ each time");
  return context.run();
}
