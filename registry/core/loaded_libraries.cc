#include "registry/core/loaded_libraries.h"

#include <unistd.h>

#include <new>
#include <shared_mutex>

namespace memledger::core {
namespace {

// Held shared by users, alone by fork. Never destroyed: programs fork while they end.
std::shared_mutex& users() {
  static auto* const one = new std::shared_mutex;
  return *one;
}

pid_t forking = 0;

}  // namespace

UsesLoadedLibraries::UsesLoadedLibraries() { users().lock_shared(); }
UsesLoadedLibraries::~UsesLoadedLibraries() { users().unlock_shared(); }

int for_each_loaded_library(int (*visit)(dl_phdr_info*, size_t, void*), void* data) {
  const UsesLoadedLibraries uses;
  return dl_iterate_phdr(visit, data);
}

void lock_loaded_libraries_for_fork() {
  users().lock();
  forking = getpid();
}

void unlock_loaded_libraries_after_fork() {
  if (getpid() == forking) {
    users().unlock();
  } else {
    // The lock knows its writer by the thread's number, which is another in the child: it would
    // take us for a reader.
    new (&users()) std::shared_mutex;
  }
}

}  // namespace memledger::core
