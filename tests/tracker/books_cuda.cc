#include <c10/cuda/CUDACachingAllocator.h>

#include "tests/tracker/books_test.h"

namespace memledger::testing {
namespace {

const RawBlocks kRawBlocks = {
    [](size_t nbytes) { return c10::cuda::CUDACachingAllocator::raw_alloc(nbytes); },
    [](void* block) { c10::cuda::CUDACachingAllocator::raw_delete(block); }};

}  // namespace

const RawBlocks* books_raw_blocks = &kRawBlocks;

}  // namespace memledger::testing
