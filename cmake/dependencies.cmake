# Abseil, fmt, nlohmann-json and CLI11: targets that the project has made before (FetchContent) are
# used, else what the system has.

set(MEMLEDGER_PUBLIC_ABSEIL absl::status absl::statusor absl::strings)
set(MEMLEDGER_ABSEIL
  absl::core_headers absl::flat_hash_map absl::hash absl::inlined_vector absl::span absl::status
  absl::statusor absl::str_format absl::strings)
if(NOT TARGET absl::status)
  find_package(absl CONFIG QUIET)
  if(NOT TARGET absl::status)
    message(FATAL_ERROR "memledger: Abseil is missing. Install it (Debian and Ubuntu: apt-get install libabsl-dev), or make it available by FetchContent before memledger.")
  endif()
endif()

# LibTorch's headers carry their own fmt; one that the project has chosen goes before it.
add_library(memledger_fmt_headers INTERFACE)
target_compile_definitions(memledger_fmt_headers INTERFACE FMT_HEADER_ONLY=1)
if(TARGET fmt::fmt-header-only)
  target_link_libraries(memledger_fmt_headers INTERFACE fmt::fmt-header-only)
elseif(NOT EXISTS "${MEMLEDGER_LIBTORCH_ROOT}/include/fmt/format.h")
  find_package(fmt CONFIG REQUIRED)
  target_link_libraries(memledger_fmt_headers INTERFACE fmt::fmt-header-only)
endif()

# Header-only, and in none of memledger's public headers.
add_library(memledger_json INTERFACE)
if(NOT TARGET nlohmann_json::nlohmann_json)
  find_package(nlohmann_json CONFIG QUIET)
endif()
if(TARGET nlohmann_json::nlohmann_json)
  target_link_libraries(memledger_json INTERFACE nlohmann_json::nlohmann_json)
else()
  find_path(MEMLEDGER_JSON_INCLUDE nlohmann/json.hpp)
  if(NOT MEMLEDGER_JSON_INCLUDE)
    message(FATAL_ERROR "memledger: nlohmann-json is missing. Install it (Debian and Ubuntu: apt-get install nlohmann-json3-dev), or make it available by FetchContent before memledger.")
  endif()
  target_include_directories(memledger_json SYSTEM INTERFACE "${MEMLEDGER_JSON_INCLUDE}")
endif()

if(MEMLEDGER_BUILD_COMMAND)
  add_library(memledger_cli11 INTERFACE)
  if(NOT TARGET CLI11::CLI11)
    find_package(CLI11 CONFIG QUIET)
  endif()
  if(TARGET CLI11::CLI11)
    target_link_libraries(memledger_cli11 INTERFACE CLI11::CLI11)
  else()
    find_path(MEMLEDGER_CLI11_INCLUDE CLI/CLI.hpp)
    if(NOT MEMLEDGER_CLI11_INCLUDE)
      message(FATAL_ERROR "memledger: CLI11 is missing, which the command needs. Install it (Debian and Ubuntu: apt-get install libcli11-dev), make it available by FetchContent before memledger, or say -DMEMLEDGER_BUILD_COMMAND=OFF.")
    endif()
    target_include_directories(memledger_cli11 SYSTEM INTERFACE "${MEMLEDGER_CLI11_INCLUDE}")
  endif()
endif()
