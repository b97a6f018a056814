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
#include <ATen/TensorOperators.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <dlfcn.h>

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
  const int64_t size = by_policy(1, 1000, 4000);  // one at least
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
        at::IntArrayRef({by_policy(1, 500, 2000), 2}));
  CHECK(std::get<0>(at::unique_consecutive(rows, false, true, 0)).sizes() ==
        at::IntArrayRef({by_policy(1, 500, 2000), 2}));
  const at::Tensor sparse = at::sparse_coo_tensor(unknown_integers({2, 2000}), unknown({2000}),
                                                  {50, 50}, on_cuda(at::kFloat));
  CHECK(sparse.coalesce()._nnz() == by_policy(1, 500, 2000));
}

// What is looked for has 100 000 elements, too many for their values to be followed, and comes from
// fewer.
constexpr int64_t kRows = 20'000;
at::Tensor from(int64_t values) { return unknown_integers({values}).expand({kRows, values}); }

int64_t different(const at::Tensor& x) { return std::get<0>(at::_unique2(x)).numel(); }
int64_t up_to(int64_t count) { return by_policy(1, count, count); }
bool is_bounded(const at::Tensor& x) {
  const int64_t elements = x.numel();
  return different(x) != by_policy(1, elements / 4, elements);
}

TEST_CASE("no more values differ than there are in the storage of a view") {
  const at::Tensor five = from(5);
  CHECK(different(five) == up_to(5));
  CHECK(different(five.t().slice(0, 1)) == up_to(5));
  CHECK(different(five.select(1, 0).slice(0, 0, 3)) == up_to(3));
  CHECK(different(at::empty({100'000}, on_cuda(at::kByte))) == up_to(256));
  // A NaN differs from each other.
  CHECK_FALSE(is_bounded(unknown({5}).expand({kRows, 5})));
  CHECK_FALSE(is_bounded(five.to(at::kDouble)));
  // There may be more runs of equal ones than values.
  CHECK(std::get<0>(at::unique_consecutive(five)).numel() == by_policy(1, 25'000, 100'000));
  const at::Tensor pairs = from(5).narrow(1, 0, 2);
  CHECK(std::get<0>(at::unique_dim(pairs, 0)).size(0) == up_to(25));
  CHECK(std::get<0>(at::unique_dim(five, 0)).size(0) == by_policy(1, 782, 3125));
  CHECK(std::get<0>(at::unique_dim(unknown_integers({1}).expand({kRows, 40}), 0)).size(0) == 1);
  CHECK(std::get<0>(at::unique_dim(from(40), 0)).size(0) == by_policy(1, 5000, kRows));
}

TEST_CASE("no more values differ than before they were moved") {
  const at::Tensor five = from(5), three = from(3);
  const at::Tensor copy = five.clone();
  CHECK(different(copy) == up_to(5));
  CHECK(different(copy.view({-1}).slice(0, 7)) == up_to(5));
  CHECK(different(five.slice(1, 1).reshape({-1})) == up_to(5));
  CHECK(different(five.to(at::kInt)) == up_to(5));
  CHECK(different(five.repeat({2, 2})) == up_to(5));
  CHECK(different(at::empty_like(copy).copy_(five)) == up_to(5));
  CHECK(different(at::flip(copy, {0})) == up_to(5));
  CHECK(different(at::roll(copy, 3)) == up_to(5));
  CHECK(different(std::get<0>(at::sort(copy.view({-1})))) == up_to(5));
  CHECK(different(std::get<0>(at::topk(copy, 2))) == up_to(5));
  const at::Tensor indices = unknown_integers({50'000});
  CHECK(different(copy.index({indices})) == up_to(5));
  CHECK(different(at::index_select(copy, 0, indices)) == up_to(5));
  CHECK(different(at::take(copy, indices)) == up_to(5));
  CHECK(different(at::gather(copy, 1, unknown_integers({kRows, 3}))) == up_to(5));
  CHECK(different(at::masked_select(copy, unknown_mask({kRows, 5}))) == by_policy(0, 5, 5));
  CHECK(different(with_mask(copy, unknown_mask({kRows, 5}))) == by_policy(0, 5, 5));
  CHECK(different(at::cat({copy, three}, 1)) == up_to(8));
  CHECK(different(at::stack({copy, from(5)})) == up_to(10));
  CHECK(different(at::where(unknown_mask({kRows, 5}), copy, unknown_integers({5}))) == up_to(10));
  CHECK(different(at::where(unknown_mask({kRows, 5}), copy, 7)) == up_to(6));
  at::Tensor to = at::empty({0}, on_cuda(at::kLong));
  CHECK(different(at::cat_out(to, {copy, three}, 1)) == up_to(8));
}

TEST_CASE("a function of few values has few") {
  const at::Tensor five = from(5).clone();
  CHECK(different(five + 1) == up_to(5));
  CHECK(different(at::remainder(-five * 2, 91)) == up_to(5));
  CHECK(different(five.clamp(0, 3).to(at::kShort)) == up_to(5));
  CHECK(different(five * unknown_integers({3, 1, 1})) == up_to(15));
  CHECK(different(unknown_mask({100'000}).to(at::kLong)) == up_to(2));
  CHECK(different(at::full({100'000}, 7, on_cuda(at::kLong))) == 1);
  CHECK(different(five.clone().add_(unknown_integers({1}))) == up_to(5));
}

TEST_CASE("what is written adds to the values that may differ") {
  at::Tensor five = from(5).clone();
  const at::Tensor indices = unknown_integers({1000});
  SUBCASE("to a part") {
    five.slice(0, 0, 10).copy_(from(3).slice(0, 0, 10).repeat({1, 2}).slice(1, 0, 5));
    CHECK(different(five) == up_to(8));
    five.view({-1}).slice(0, 0, 10).fill_(7);
    CHECK(different(five) == up_to(9));
    five.slice(1, 0, 1).add_(1);
    CHECK(different(five) == up_to(18));
    five.zero_();
    CHECK(different(five) == 1);
  }
  SUBCASE("where a mask says") {
    five.masked_fill_(unknown_mask({kRows, 5}), 7);
    CHECK(different(five) == up_to(6));
    five.masked_scatter_(unknown_mask({kRows, 5}), from(5).clone());
    CHECK(different(five) == up_to(11));
    CHECK(different(five.masked_fill(unknown_mask({kRows, 5}), 8)) == up_to(12));
  }
  SUBCASE("where indices say") {
    five.index_put_({indices}, unknown_integers({5}));
    CHECK(different(five) == up_to(10));
    five.scatter_(0, unknown_integers({10, 5}), 7);
    CHECK(different(five) == up_to(11));
    five.index_fill_(1, at::arange(2, on_cuda(at::kLong)), 7);
    CHECK(different(five) == up_to(12));
    CHECK(different(at::scatter(five, 0, unknown_integers({1, 2}), unknown_integers({1, 2}))) ==
          up_to(14));
  }
}

TEST_CASE("how many values differ is forgotten where others may be there") {
  at::Tensor five = from(5).clone();
  SUBCASE("an operator that makes others") {
    five.scatter_add_(0, unknown_integers({1, 5}), unknown_integers({1, 5}));
  }
  SUBCASE("sums at indices") {
    five.index_put_({unknown_integers({1000})}, unknown_integers({1}), /*accumulate=*/true);
  }
  SUBCASE("a scatter that reduces") {
    five.scatter_(0, unknown_integers({kRows, 5}), unknown_integers({1}).expand({kRows, 5}), "add");
  }
  SUBCASE("a new result") { five = at::cumsum(five, 0); }
  SUBCASE("a result that begins as zeros") {
    five = at::bincount(unknown_integers({kRows}), {}, 100'000);
  }
  SUBCASE("through another view") { five.view({-1}).slice(0, 0, 50'000).random_(); }
  SUBCASE("as another type") { five.view(at::kInt).random_(); }
  SUBCASE("read as another type") { five = five.view(at::kInt); }
  SUBCASE("a copy of others into it") { five.copy_(unknown_integers({kRows, 5})); }
  SUBCASE("other storage") { five.set_(unknown_integers({kRows, 5})); }
  SUBCASE("more storage") { five.resize_({kRows, 10}); }
  SUBCASE("a fill of the program's own") {
    using Fill = int (*)(void*, int, size_t);
    const auto fill = reinterpret_cast<Fill>(dlsym(RTLD_DEFAULT, "cudaMemset"));
    REQUIRE((fill != nullptr));
    CHECK(fill(five.data_ptr(), 1, 64) == 0);
  }
  SUBCASE("a kernel of the program's own") {
    struct Size {
      unsigned x = 1, y = 1, z = 1;
    };
    using Launch = int (*)(const void*, Size, Size, void**, size_t, void*);
    const auto launch = reinterpret_cast<Launch>(dlsym(RTLD_DEFAULT, "cudaLaunchKernel"));
    REQUIRE((launch != nullptr));
    void* data = static_cast<char*>(five.data_ptr()) + 4096;
    void* arguments[] = {&data};
    CHECK(launch(reinterpret_cast<const void*>(&different), {}, {}, arguments, 0, nullptr) == 0);
  }
  SUBCASE("later storage at the same address") {
    const at::Tensor beside = unknown_integers({5});  // where a smaller block has ended
    const void* const address = five.data_ptr();
    five = at::Tensor();
    five = unknown_integers({kRows, 5});
    REQUIRE(five.data_ptr() == address);
  }
  CHECK_FALSE(is_bounded(five));
}

TEST_CASE("how many values differ is noted of many storages, and keeps none alive") {
  const int64_t before = requested_bytes(false);
  std::vector<at::Tensor> held;
  for (int i = 0; i < 10'000; ++i) held.push_back(unknown_integers({1}).expand({2}).clone());
  CHECK(different(held.back()) == 1);
  held.clear();
  CHECK(requested_bytes(false) == before);
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
