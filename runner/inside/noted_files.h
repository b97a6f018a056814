#pragma once

// Notes, in the folder of a measured run, which files its programs wrote and which of their calls
// failed because their writes are held back (prediction/run_files.h reads both).
//
// All functions can be called in signal handlers and children of vfork, and leave errno as it was.

#include <stddef.h>

namespace memledger::inside {

inline constexpr size_t kPathBytes = 4096;

class KeptErrno {
 public:
  KeptErrno();
  ~KeptErrno();
  KeptErrno(const KeptErrno&) = delete;
  KeptErrno& operator=(const KeptErrno&) = delete;

 private:
  const int error_;
};

// Reads the variables, if nobody has yet: constructors of other libraries may run before ours.
void begin_once();
// Called once, before the others: what only caches hold is not noted.
void begin_to_leave_out_caches();
// Called once, with an absolute path. Nothing is noted before.
void begin_to_note_files(const char* folder);
bool are_files_noted();
// Whether there is a place for what is written: that folder, or the list of a run (unreal_files.h).
bool are_writes_noted();
// Paths below it are noted without it: the run's private files stand for those. What was written is
// not noted then, as it is there to be seen.
void note_without_prefix(const char* prefix);

// Writes the absolute path of `path` as seen from an open folder into `result`; links stay as they
// are. Returns false where it has none.
bool absolute_path(int folder, const char* path, char result[kPathBytes]);
// Writes the path of an open file, links followed. Returns false where it has none.
bool path_of_descriptor(int descriptor, char result[kPathBytes]);

void note_written(int descriptor);
void note_written(int folder, const char* path);

// Whether this is root in a namespace of users, who has not all of root's rights.
bool is_root_of_namespace();

// Which errors of a call are noted.
enum class Errors {
  kOfFolders,  // what another file system or a full one can cause
  kOfOwners,   // what users and groups that are not known can cause
  kOfSpace,    // only that nothing is left
};
// After a call failed with errno.
void note_failure(const char* call, int folder, const char* path,
                  Errors errors = Errors::kOfFolders);
void note_failure(const char* call, int descriptor, Errors errors);
// Does not depend on errno.
void note_refusal(const char* what, int folder, const char* path);
// Before a call that opens a file: notes a FIFO that was there before the run. Under an overlay it
// is another one than outside, and the call may wait for ever.
void note_fifo(int folder, const char* path);
// `what` gets the name of an error, like "rename: EXDEV".
void note_error(const char* call, int error, int folder, const char* path);

}  // namespace memledger::inside
