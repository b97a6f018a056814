// What is read of compiled device code, and the hash of the runtime's validity test.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "virtual_gpu/device_code.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "tests/virtual_gpu/made_device_code.h"
#include "virtual_gpu/md2.h"

namespace memledger::virtual_gpu {
namespace {

using Bytes = std::vector<unsigned char>;

const std::vector<MadeKernel> kKernels = {{"_Z1kPf", 40, 16, 2048, 0, false, {4, 24, 1}},
                                          {"bounded", 255, 0, 0, 128}};
const std::vector<MadeVariable> kVariables = {{"table", 4000, false},
                                              {"shared_with_host", 8, true}};

Bytes machine_code(bool reserves_shared) {
  return MadeElf(kKernels, kVariables, reserves_shared).bytes();
}

void check_content(const DeviceCode& code) {
  CHECK(code.is_readable);
  REQUIRE(code.kernels.size() == 2);
  const KernelCode& kernel = code.kernels.at("_Z1kPf");
  CHECK(kernel.registers == 40);
  CHECK(kernel.local_bytes == 16);
  CHECK(kernel.shared_bytes == 2048);
  CHECK(kernel.max_threads == 0);
  REQUIRE(kernel.parameters.size() == 3);
  CHECK(kernel.parameters[0].offset == 0);
  CHECK(kernel.parameters[0].bytes == 4);
  CHECK(kernel.parameters[1].offset == 8);
  CHECK(kernel.parameters[1].bytes == 24);
  CHECK(kernel.parameters[2].offset == 32);
  CHECK(kernel.parameters[2].bytes == 1);
  CHECK(code.kernels.at("bounded").parameters.empty());
  CHECK(code.kernels.at("bounded").registers == 255);
  CHECK(code.kernels.at("bounded").max_threads == 128);
  REQUIRE(code.variables.size() == 2);
  CHECK(code.variables.at("table").bytes == 4000);
  CHECK_FALSE(code.variables.at("table").managed);
  CHECK(code.variables.at("shared_with_host").managed);
}

TEST_CASE("machine code tells its kernels and variables") {
  for (const bool reserves : {false, true}) {
    const Bytes file = machine_code(reserves);
    const DeviceCode code = read_device_code(file.data(), 90);
    CHECK(code.runs);
    check_content(code);
  }
}

TEST_CASE("the newest machine code of the device's major version is taken, else PTX") {
  const Bytes code = machine_code(false);
  const Bytes binary = made_fat_binary({{false, 75, code},
                                        {false, 80, code},
                                        {false, 86, code},
                                        {false, 90, code},
                                        {true, 80, {'p'}}});
  MadeFrame frame;
  frame.code = binary.data();
  const auto chosen = [&](int capability) { return read_device_code(&frame, capability); };
  CHECK(chosen(80).binary_version == 80);
  CHECK(chosen(89).binary_version == 86);
  CHECK(chosen(90).binary_version == 90);
  CHECK(chosen(90).ptx_version == 90);
  check_content(chosen(90));
  // PTX of 8.0 is compiled for the device; what is in it is read from the machine code.
  CHECK(chosen(100).runs);
  CHECK(chosen(100).binary_version == 100);
  CHECK(chosen(100).ptx_version == 80);
  check_content(chosen(100));
  CHECK_FALSE(chosen(70).runs);
}

TEST_CASE("linked code runs where the PTX of all its parts does") {
  const Bytes whole = made_fat_binary({{false, 75, machine_code(false)}});
  const Bytes old = made_fat_binary({{true, 75, {'p'}}}),
              newer = made_fat_binary({{true, 90, {'p'}}});
  const void* parts[] = {old.data(), newer.data(), nullptr};
  MadeFrame frame;
  frame.version = 2;
  frame.code = whole.data();
  CHECK_FALSE(read_device_code(&frame, 90).runs);
  frame.prelinked = parts;
  CHECK(read_device_code(&frame, 75).binary_version == 75);
  CHECK(read_device_code(&frame, 90).runs);
  CHECK(read_device_code(&frame, 90).binary_version == 90);
  check_content(read_device_code(&frame, 90));
  CHECK_FALSE(read_device_code(&frame, 89).runs);
}

TEST_CASE("compressed machine code runs, and tells nothing") {
  const Bytes binary = made_fat_binary({{false, 90, machine_code(true), /*compressed=*/true}});
  const DeviceCode code = read_device_code(binary.data(), 90);
  CHECK(code.runs);
  CHECK(code.binary_version == 90);
  CHECK_FALSE(code.is_readable);
  CHECK(code.kernels.empty());
  CHECK_FALSE(read_device_code(binary.data(), 80).runs);
}

TEST_CASE("what is of no known format runs") {
  for (const char* text : {"", ".version 8.0", "\x7f",
                           "\x7f"
                           "EL"}) {
    const DeviceCode code = read_device_code(text, 89);
    CHECK(code.runs);
    CHECK(code.binary_version == 89);
    CHECK_FALSE(code.is_readable);
  }
  CHECK(read_device_code(nullptr, 89).runs);
}

TEST_CASE("a damaged file is refused or read in part, never beyond its end") {
  const Bytes whole = machine_code(true);
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const unsigned char value : {0x00, 0xff, 0x80}) {
      Bytes damaged = whole;
      damaged[at] = value;
      // Exactly as long as it is, so that the sanitizers see what is read beyond.
      const Bytes binary = made_fat_binary({{false, 90, damaged}});
      read_device_code(binary.data(), 90);
    }
  }
  for (size_t length = 0; length < whole.size(); length += 7) {
    const Bytes binary =
        made_fat_binary({{false, 90, Bytes(whole.begin(), whole.begin() + length)}});
    read_device_code(binary.data(), 90);
  }
}

TEST_CASE("boards whose hosts are of another kind are taken to have their own code") {
  const std::vector<unsigned char> binary =
      made_fat_binary({{false, 86, MadeElf({{"kernel", 32, 0, 0, 0}}, {}, false).bytes()}});
  CHECK(read_device_code(binary.data(), 87).runs);
  CHECK(read_device_code(binary.data(), 87).binary_version == 87);
  CHECK(read_device_code(binary.data(), 89).binary_version == 86);
  CHECK_FALSE(read_device_code(binary.data(), 90).runs);
}

std::string hex(const Md2Digest& digest) {
  std::string text;
  for (const unsigned char byte : digest) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", byte);
    text += two;
  }
  return text;
}

// RFC 1319, A.5.
TEST_CASE("MD2 is that of its standard") {
  const auto of = [](const std::string& text) { return hex(md2({text.begin(), text.end()})); };
  CHECK(of("") == "8350e5a3e24c153df2275c9f80692773");
  CHECK(of("a") == "32ec01ec4a6dac72c0ab96fb34c0b5d1");
  CHECK(of("abc") == "da853b0d3f88d99b30283a69e6ded6bb");
  CHECK(of("message digest") == "ab4f496bfb2a530b219ff33031fe06b0");
  CHECK(of("12345678901234567890123456789012345678901234567890123456789012345678901234567890") ==
        "d5976f79d83d3a0dc9806c3c66f3efd8");
}

}  // namespace
}  // namespace memledger::virtual_gpu
