#include "runner/version_text.h"

#include "absl/strings/str_cat.h"
#include "registry/interface_hash.h"
#include "registry/libtorch/newest_libtorch.h"
#include "registry/version.h"

namespace memledger::runner {
namespace {

#if defined(__clang__)
constexpr char kCompiler[] = __VERSION__;  // `Clang 14.0.6 …`
#else
constexpr char kCompiler[] = "GCC " __VERSION__;
#endif

constexpr long kStandard = __cplusplus / 100 % 100;  // 201703L

}  // namespace

std::string version_text() {
  const std::string note = newer_libtorch_note(MEMLEDGER_LIBTORCH_RELEASE);
  return absl::StrCat("memledger ", MEMLEDGER_VERSION, "\n",          //
                      "LibTorch ", MEMLEDGER_LIBTORCH_RELEASE, "\n",  //
                      "Build: ", kCompiler, ", C++", kStandard, ", interface ",
                      MEMLEDGER_INTERFACE_HASH, "\n",  //
                      note.empty() ? "" : "Note: ", note, note.empty() ? "" : "\n");
}

}  // namespace memledger::runner
