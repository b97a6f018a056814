#pragma once

// What libmemledger_measure.so offers to libmemledger.so, which finds it by name: where it is
// missing there is no list of written files (unreal_files.h).

#include <stdint.h>

extern "C" {

// While the sum of the changes that a thread has given is not zero, the files that it opens are
// memledger's own, and are not noted.
void memledger_own_file(int change);

// A value of the device that is not known was copied to the host. May be called in signal handlers.
void memledger_note_unreal_value();

typedef void (*memledger_path_visitor)(void* context, const char* path);
// Calls `visit` with each file that `process` wrote after that, once each; the first process of a
// run has all that no other process has reported. Returns how many these are. `tells`: 0 leaves
// them to be reported again; 1 marks them as reported by this process, which finds them again; 2
// finds only what it has not reported. `is_known` gets whether there is a list and such a value was
// read, `is_complete` whether the list has had room for all. Cost: a look at each file that was
// opened for writing.
uint64_t memledger_visit_unreal_files(int process, int tells, memledger_path_visitor visit,
                                      void* context, bool* is_known, bool* is_complete);

}  // extern "C"
