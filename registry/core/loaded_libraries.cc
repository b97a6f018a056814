#include "registry/core/loaded_libraries.h"

#include <unistd.h>

#include <new>
#include <shared_mutex>

namespace memledger::core {
namespace {

// Users hold it shared, fork exclusively. Never destroyed: programs fork while they end.
std::shared_mutex& users() {
  static auto* const lock = new std::shared_mutex;
  return *lock;
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
    // The lock knows its writer by the thread's number, which differs in the child: unlocking would
    // take us for a reader.
    new (&users()) std::shared_mutex;
  }
}

}  // namespace memledger::core
