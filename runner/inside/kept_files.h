#pragma once

// Keeps files that were there before a dry run from what its programs do to them: a checkpoint of
// zeros must not replace a real one. What would be written, replaced or removed is linked into a
// folder `.memledger-XXXXXX` of the same file system first, and the program gets a file of its own
// in its place; `runner/kept_files.h` puts everything back. Programs see what they would see
// without it.
//
// All functions can be called in signal handlers and children of vfork. Where one returns false,
// the file can't be kept, errno is set, and the program must not go on with what it wanted.

namespace memledger::inside {

// Called once. `scratch` is the folder of the dry run, of which a copy is made; `is_exempt` tells
// of paths that nobody would miss. Returns false, and keeps nothing, where it is no such folder.
bool begin_to_keep_files(const char* scratch, bool (*is_exempt)(const char* path));

// Before open() with `flags`, truncate() and the like.
bool keep_before_write(int folder, const char* path, int flags);
// Before unlink() and the like.
bool keep_before_removal(int folder, const char* path);
// Before rename(). A folder is kept with all that is in it.
bool keep_before_rename(int from_folder, const char* from, int to_folder, const char* to);
// After it: what came to `to` is not to be put back there.
void note_renamed(int to_folder, const char* to);

}  // namespace memledger::inside
