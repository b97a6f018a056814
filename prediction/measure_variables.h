#pragma once

// Names between `memledger dry-run` and the programs that it measures. The preloaded library, which
// knows no C++ library, includes this.

namespace memledger::prediction {

// The variables that make a program measure itself (runner/inside/measure.cc). The folder gets one
// file per process that used a GPU, PID.json, and what prediction/run_files.h reads.
inline constexpr char kMeasureVariable[] = "MEMLEDGER_MEASURE";
// step, any_step, enough, enough_any_step, exit or (measured_call.h) call.
inline constexpr char kUntilVariable[] = "MEMLEDGER_MEASURE_UNTIL";
// Ends as `step` does, but steps that differ do not have to come again: no two are alike.
inline constexpr char kUntilAnyStep[] = "any_step";
// Goes on where `step` ends, until a file of this name is in the folder.
inline constexpr char kUntilEnough[] = "enough";
// Both: goes on where `any_step` ends.
inline constexpr char kUntilEnoughAnyStep[] = "enough_any_step";

// The same folder for a program that is not measured, but whose writes are held back.
inline constexpr char kNotesVariable[] = "MEMLEDGER_NOTES";
// The list of files that are written on a virtual GPU (runner/inside/unreal_files.h).
inline constexpr char kWrittenListVariable[] = "MEMLEDGER_WRITTEN";
// What a run assumes of values that only the device has: lines of words with tabs between them. A
// site, or all of a kind, and what is read there (virtual_gpu/values/assumptions.h); kAssumeAtLine,
// FILE:LINE and the number that the user gave.
inline constexpr char kAssumptionsVariable[] = "MEMLEDGER_ASSUMPTIONS";
// For sizes: kAssumeCapped, a site and the line of the loop that it drives; kAssumeNoDriver and a
// site that drives none, whatever it looks like.
inline constexpr char kAssumeCapped[] = "capped";
inline constexpr char kAssumeNoDriver[] = "no_driver";
inline constexpr char kAllSizes[] = "all";  // sites
inline constexpr char kAssumeAtLine[] = "at";
inline constexpr char kAllNumbers[] = "numbers";
inline constexpr char kAllTruths[] = "truths";
inline constexpr char kAssumeOther[] = "other";
inline constexpr char kAssumeSmall[] = "small";
inline constexpr char kAssumeOne[] = "one";
inline constexpr char kAssumeMiddle[] = "middle";  // of copies of an unwatched process
inline constexpr char kAssumeLarge[] = "large";
inline constexpr char kAssumeHuge[] = "huge";
inline constexpr char kAssumeMillion[] = "million";  // where a program takes no huge one

// Sites of a process that is not watched (virtual_gpu/unwatched_reads.h): the copies to the host of
// what nobody knows, each tried in four ways.
inline constexpr char kCopiedTruths[] = "copied:truths";
inline constexpr char kCopiedNumbers[] = "copied:numbers";
inline constexpr char kCopiedFractions[] = "copied:fractions";
inline constexpr char kCopiedMixed[] = "copied:mixed";

// A loop that an assumed size drives and that would not end in time (run_files.h). The run is no
// use from there on.
inline constexpr char kSizeLoop[] = "loop";

// PID.watched: the process is measured, and has a PID.json unless it is killed.
inline constexpr char kWatchedExtension[] = ".watched";
// PID.progress: one line, replaced in place while the process runs.
inline constexpr char kProgressExtension[] = ".progress";
// The paths of written files, each ended by a zero byte, as a path may hold a newline; all
// processes append.
inline constexpr char kWrittenFiles[] = "written";

// PID.torch: what the torch of a Python program said of itself, of a release that memledger was not
// built for (runner/inside/other_release.py).
inline constexpr char kTorchExtension[] = ".torch";

// What programs were refused, or would find to be another file, because of how their writes are
// held back: records of two texts, each ended by a zero byte, like "rename: EXDEV" and the path.
// All processes append.
inline constexpr char kRefusedFiles[] = "refused";

// Why a process was not measured though it has LibTorch: lines, which all such processes append.
inline constexpr char kUnwatchedProcesses[] = "unwatched";

// How many devices the virtual GPU has: programs see their files as present
// (runner/inside/device_files.h).
inline constexpr char kDevicesVariable[] = "MEMLEDGER_VIRTUAL_DEVICES";

// A private folder, made by runner/writes/redirect_folder.h: what programs write, rename or remove
// goes there instead (runner/inside/redirected_files.h).
inline constexpr char kRedirectVariable[] = "MEMLEDGER_REDIRECT";
inline constexpr char kRedirectedRoot[] = "root";  // files by their absolute path
// Links whose targets are the paths of removed files; the names are hashes of these paths.
inline constexpr char kRemovedPaths[] = "removed";
// Bytes of zeros, which all processes map: which paths may be among the removed ones.
inline constexpr char kRemovedFilter[] = "filter";
inline constexpr unsigned kRemovedFilterBytes = 1 << 16;
// Paths of folders that are written for real, each ended by a zero byte.
inline constexpr char kAllowedFolders[] = "allowed";
inline constexpr unsigned kMaxAllowedFoldersBytes = 1 << 14;
inline constexpr char kUnnamedFiles[] = "unnamed";  // temporary files and copies under way
// Eight bytes: the key with which the library may change modes, owners and times of private files,
// which the kernel refuses otherwise (runner/writes/landlock_rules.h).
inline constexpr char kAttributeKey[] = "key";

}  // namespace memledger::prediction
