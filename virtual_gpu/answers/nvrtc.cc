// NVRTC, the run-time compiler: every program compiles, to nothing, as kernels are not run.
#include <elf.h>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <unordered_map>

#include "virtual_gpu/answer_macros.h"

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidInput = 3;

struct Program {
  // The answers point into these, so they live as long as the program.
  std::unordered_map<std::string, std::string> lowered;
};

constexpr char kEmpty[] = "";

int one_byte(size_t* bytes) {
  if (!bytes) return kInvalidInput;
  *bytes = sizeof kEmpty;
  return kSuccess;
}

int empty_text(char* text) {
  if (!text) return kInvalidInput;
  std::memcpy(text, kEmpty, sizeof kEmpty);
  return kSuccess;
}

}  // namespace

MEMLEDGER_ANSWER int nvrtcVersion(int* major, int* minor) {
  if (!major || !minor) return kInvalidInput;
  *major = CUDART_VERSION / 1000;
  *minor = CUDART_VERSION % 1000 / 10;
  return kSuccess;
}

MEMLEDGER_ANSWER int nvrtcCreateProgram(Program** program, const char*, const char*, int,
                                        const char* const*, const char* const*) {
  if (!program) return kInvalidInput;
  *program = new Program;
  return kSuccess;
}

MEMLEDGER_ANSWER int nvrtcDestroyProgram(Program** program) {
  if (!program) return kInvalidInput;
  delete *program;
  *program = nullptr;
  return kSuccess;
}

MEMLEDGER_DOES_NOTHING(nvrtcCompileProgram)
MEMLEDGER_DOES_NOTHING(nvrtcAddNameExpression)

MEMLEDGER_ANSWER int nvrtcGetLoweredName(Program* program, const char* expression,
                                         const char** name) {
  if (!program || !expression || !name) return kInvalidInput;
  *name = (program->lowered[expression] = expression).c_str();
  return kSuccess;
}

MEMLEDGER_ANSWER int nvrtcGetPTXSize(Program*, size_t* bytes) { return one_byte(bytes); }
MEMLEDGER_ANSWER int nvrtcGetPTX(Program*, char* text) { return empty_text(text); }

// Machine code without anything in it: CuPy takes one byte for an error.
MEMLEDGER_ANSWER int nvrtcGetCUBINSize(Program*, size_t* bytes) {
  if (!bytes) return kInvalidInput;
  *bytes = sizeof(Elf64_Ehdr);
  return kSuccess;
}
MEMLEDGER_ANSWER int nvrtcGetCUBIN(Program*, char* code) {
  if (!code) return kInvalidInput;
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  std::memcpy(code, &header, sizeof header);
  return kSuccess;
}

MEMLEDGER_ANSWER int nvrtcGetProgramLogSize(Program*, size_t* bytes) { return one_byte(bytes); }
MEMLEDGER_ANSWER int nvrtcGetProgramLog(Program*, char* text) { return empty_text(text); }
MEMLEDGER_ANSWER const char* nvrtcGetErrorString(int error) {
  return error == kSuccess ? "NVRTC_SUCCESS" : "NVRTC_ERROR";
}
