#pragma once

#include <new>

// Handles and descriptors of the math libraries: every one is an object of its own, freed when it
// is destroyed.
namespace memledger::virtual_gpu {

template <typename T>
int make_object(T** out, int bad_value, int no_memory) {
  if (out == nullptr) return bad_value;
  *out = new (std::nothrow) T();
  return *out == nullptr ? no_memory : 0;
}

template <typename T>
int drop_object(T* object) {
  delete object;
  return 0;
}

}  // namespace memledger::virtual_gpu
