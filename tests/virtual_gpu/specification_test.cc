#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "virtual_gpu/specification.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/text_matchers.h"
#include "virtual_gpu/gpc_layout.h"
#include "virtual_gpu/profile_json.h"
#include "virtual_gpu/profiles.h"
#include "virtual_gpu/reads.h"

namespace memledger::virtual_gpu {
namespace {

using testing::contains;

Specification parsed(std::string_view text) {
  const ParsedSpecification result = parse_specification(text);
  INFO("specification: " << std::string(text) << ", error: " << result.error);
  REQUIRE(result.specification);
  CHECK(result.error.empty());
  return *result.specification;
}

std::string error(std::string_view text) {
  const ParsedSpecification result = parse_specification(text);
  INFO("specification: " << std::string(text));
  CHECK_FALSE(result.specification);
  // A sentence.
  REQUIRE_FALSE(result.error.empty());
  CHECK(result.error.back() == '.');
  return result.error;
}

TEST_CASE("the GPCs of a device hold its multiprocessors, and differ as boards do") {
  const Profile& h200 = *find_profile("h200");
  CHECK(multiprocessors_of_gpcs(h200, 0) == std::vector<int>{16, 16, 16, 16, 16, 16, 18, 18});
  CHECK(multiprocessors_of_gpcs(h200, 1) == std::vector<int>{14, 18, 16, 16, 16, 16, 18, 18});
  CHECK(multiprocessors_of_gpcs(h200, 3) == std::vector<int>{14, 18, 14, 18, 14, 18, 18, 18});
  CHECK(active_clusters(h200, 0, 1, 18) == 2);
  CHECK(active_clusters(h200, 0, 2, 16) == 16);
  for (const Profile& profile : profiles()) {
    for (int unevenness = 0; unevenness < 4; ++unevenness) {
      const std::vector<int> sizes = multiprocessors_of_gpcs(profile, unevenness);
      CHECK(std::accumulate(sizes.begin(), sizes.end(), 0) == profile.multiprocessors);
      CHECK(*std::min_element(sizes.begin(), sizes.end()) > 0);
      // What cuDNN 9.1 does: sizes from 18 down, each less what larger GPCs explain.
      std::vector<int> found;
      for (int size = 20; size > 0; size -= size > 2 ? 2 : 1) {
        int left = active_clusters(profile, unevenness, 1, size);
        for (const int larger : found) left -= larger / size;
        REQUIRE(left >= 0);
        found.insert(found.end(), static_cast<size_t>(left), size);
      }
      CHECK(std::accumulate(found.begin(), found.end(), 0) == profile.multiprocessors);
    }
  }
}

TEST_CASE("an unknown device is answered with the names that are near") {
  CHECK(contains(error("h1000"), "\"h1000\" is not a known device: h100? Known are: "));
  CHECK(contains(error("RTX4099"), "is not a known device: rtx4090? "));
  CHECK(contains(error("4090"), "is not a known device: rtx4090? "));
  CHECK(contains(error("NVIDIA L40S"), "is not a known device: l40s? "));
  CHECK(contains(error("a11"), "is not a known device: a10? "));
  CHECK(contains(error("tpu-v5"), "is not a known device. Known are: "));
}

TEST_CASE("a name alone") {
  for (const Profile& profile : profiles()) {
    const Specification specification = parsed(profile.name);
    REQUIRE(specification.devices.size() == 1);
    const DeviceSpecification& device = specification.devices[0];
    CHECK(device.profile.name == profile.name);
    CHECK_FALSE(device.memory_bytes);
    CHECK(device.capacity_bytes() == profile.total_memory_bytes);
    CHECK(specification.count == 1);
    CHECK(specification.keep_bytes == 0);
    CHECK_FALSE(specification.context_bytes);
    CHECK(specification.context_bytes_of(device) == profile.context_bytes);
  }
}

uint64_t memory(std::string_view text) { return *parsed(text).devices.at(0).memory_bytes; }

TEST_CASE("a name under which devices are shared") {
  CHECK(parsed("h100").share.empty());
  CHECK(parsed("h100,share=job-1_a.b,count=2").share == "job-1_a.b");
  CHECK(contains(error("h100,share="), "not a name"));
  CHECK(contains(error("h100,share=../x"), "share=../x is not a name of up to 64 letters"));
  CHECK(contains(error("h100,share=a b"), "not a name"));
  CHECK(contains(error("h100,share=" + std::string(65, 'a')), "not a name"));
  CHECK(parsed("h100,share=" + std::string(64, 'a')).share.size() == 64);
  CHECK(contains(error("h100,share=a,share=a"), "given twice"));
}

TEST_CASE("memory and options") {
  CHECK(memory("h200:24GiB") == 24ULL << 30);
  CHECK(memory("h200:80GB") == 80000000000);
  CHECK(memory("h200:512MiB") == 512ULL << 20);
  CHECK(memory("h200:500MB") == 500000000);
  CHECK(memory("h200:1048576KiB") == 1ULL << 30);
  CHECK(memory("h200:100000KB") == 100000000);
  CHECK(memory("h200:100000001B") == 100000001);
  CHECK(memory("h200:1.5GiB") == 3ULL << 29);
  CHECK(memory("h200:0.125GiB") == 1ULL << 27);
  CHECK_FALSE(parsed("h200").ascending_addresses);
  CHECK_FALSE(parsed("h200,addresses=down").ascending_addresses);
  CHECK(parsed("h200,addresses=up").ascending_addresses);
  CHECK(parsed("h200").libraries == LibraryChoice::kAsFound);
  CHECK(parsed("h200,libraries=stand-ins").libraries == LibraryChoice::kStandIns);
  CHECK(parsed("h200,libraries=real").libraries == LibraryChoice::kReal);
  CHECK_FALSE(parsed("h200").nccl_bytes);
  CHECK(parsed("h200,nccl=0B").nccl_bytes == 0);
  CHECK(parsed("h200,nccl=1.5GiB").nccl_bytes == 3ULL << 29);
  CHECK_FALSE(parsed("h200").late_events);
  CHECK_FALSE(parsed("h200,events=once").late_events);
  CHECK(parsed("h200,events=late").late_events);
  CHECK(parsed("h200,values=zero").value_bytes == 0);
  CHECK(parsed("h200,values=known").value_bytes == kValueBytes);
  CHECK_FALSE(parsed("h200").numbers_are_one);
  CHECK(parsed("h200,numbers=one").numbers_are_one);
  CHECK(contains(error("h200,numbers=2"), "numbers=2 is neither zero nor one."));
  CHECK(contains(error("h200,values=off"), "values=off is neither zero nor known."));
  CHECK(parsed("h200").workspaces == WorkspaceEnd::kExpected);
  CHECK(parsed("h200,workspaces=least").workspaces == WorkspaceEnd::kLeast);
  CHECK(parsed("h200,workspaces=upper").workspaces == WorkspaceEnd::kUpper);
  CHECK(parsed("h200").assumed_millionths == kMillion);
  CHECK(parsed("h200,reads=none").assumed_millionths == 0);
  CHECK(parsed("h200,reads=0.125").assumed_millionths == 125000);
  CHECK(contains(error("h200,reads=2"), "reads=2 is neither none, all, varied nor a fraction"));
  CHECK(contains(error("h200,events=never"), "events=never is neither once nor late."));
  const auto assumed = [](const std::string& share) {
    return parsed("h200,reads=" + share).assumed_millionths;
  };
  CHECK(parsed("h200").assumed_millionths == 1000000);
  CHECK(assumed("all") == 1000000);
  CHECK(assumed("1") == 1000000);
  CHECK(assumed("1.000") == 1000000);
  CHECK(assumed("none") == 0);
  CHECK(assumed("0") == 0);
  CHECK(assumed("0.125") == 125000);
  CHECK(assumed("0.000001") == 1);
  CHECK(assumed("varied") == kVariedMillionths);
  for (const char* share :
       {"", "some", "2", "1.1", "1.000001", "-0.5", ".5", "0.", "0.0000001", "1/8"}) {
    CHECK(contains(error("h200,reads=" + std::string(share)),
                   "is neither none, all, varied nor a fraction from 0 to 1"));
  }
  const Specification all = parsed("h100:80GiB,count=8,keep=4KiB,context=300MiB");
  CHECK(all.devices.at(0).profile.name == "h100");
  CHECK(*all.devices[0].memory_bytes == 80ULL << 30);
  CHECK(all.count == 8);
  CHECK(all.keep_bytes == 4096);
  CHECK(all.context_bytes == 300ULL << 20);
  CHECK(parsed("a100,count=2").count == 2);
  CHECK(parsed("a100,keep=0B,count=3").count == 3);
}

TEST_CASE("errors name the thing and what is known") {
  for (const char* text : {"", "k80", "H200", " h200", ":24GiB", "h200 ", "h200+", "+h200"}) {
    CHECK(contains(error(text), "is not a known device"));
    CHECK(contains(error(text), " Known are: b200, h200, h100, "));
  }
  CHECK(contains(error("k80:24GiB"), "\"k80\""));
  for (const char* amount : {"", "GiB", "24", "24G", "24gib", "-1GiB", "1e3MiB", "1.GiB",
                             "1.2345GiB", "1.2.3GiB", "24 GiB", ".5GiB"}) {
    CHECK(contains(error("h200:" + std::string(amount)),
                   "\"" + std::string(amount) + "\" is not an amount of memory"));
  }
  CHECK(contains(error("h200:63MiB"), "at least 64MiB"));
  CHECK(contains(error("h200:99999GiB"), "more memory than a virtual GPU can have"));
  CHECK(contains(error("h200:99999999999999999999999GiB"), "is not an amount of memory"));
  for (const char* count : {"0", "9", "-1", "two", "", "1.5", "99999999999999999999"}) {
    CHECK(contains(error("h200,count=" + std::string(count)),
                   "is not a number of devices from 1 to 8"));
  }
  for (const char* option : {"", "count", "cuont=2", "=2", "COUNT=2"}) {
    CHECK(contains(error("h200," + std::string(option)),
                   "is not a known option. Known are: count=1..8, context=least|most|BYTES, "
                   "events=once|late, reads=none|all|FRACTION, values=known|zero, "
                   "numbers=zero|one, workspaces=least|expected|upper, addresses=up|down, "
                   "libraries=stand-ins|real, uneven=0..3, nccl=BYTES, "
                   "share=NAME, calibration=FILE, "
                   "keep=BYTES."));
  }
  CHECK(contains(error("h200,libraries=mine"), "libraries=mine is neither stand-ins nor real."));
  CHECK(contains(error("h200,addresses=device"), "addresses=device is neither down nor up."));
  CHECK(contains(error("h200,nccl=few"), "nccl="));
  CHECK(contains(error("h200,nccl=0B,nccl=1GiB"), "given twice"));
  CHECK(contains(error("h200,count=2,count=2"), "given twice"));
  CHECK(contains(error("h200,keep=many"), "keep="));
  CHECK(contains(error("h200:1GiB,context=1GiB"), "all of the device's memory"));
  CHECK(contains(error("h200+l4,context=40GiB"), "all of the device's memory"));
  CHECK(contains(error("h200+l4+t4,count=3"), "3 devices, 3 of each, are more than 8"));
  CHECK(contains(error("t4+t4+t4+t4+t4+t4+t4+t4+t4"), "more than 8 devices"));
}

TEST_CASE("the context is the profile's from 2 GiB on, unless one is named") {
  const auto context = [](std::string_view text) {
    const Specification specification = parsed(text);
    return specification.context_bytes_of(specification.devices.at(0));
  };
  CHECK(context("a100") == 539ULL << 20);
  CHECK(context("a100:2GiB") == 539ULL << 20);
  CHECK(context("a100:2047MiB") == 0);
  CHECK(context("a100,context=most") == 539ULL << 20);
  CHECK(context("a100,context=least") == 496ULL << 20);
  CHECK(context("a100:2047MiB,context=least") == 0);
  CHECK(contains(error("a100,context=lest"), "\"lest\" is not an amount of memory"));
  CHECK(context("a100,context=0B") == 0);
  CHECK(context("a100:1GiB,context=1MiB") == 1 << 20);
}

TEST_CASE("different devices stand side by side, each as often as count says") {
  const Specification specification = parsed("h100+l4:16GiB,count=2");
  const std::vector<DeviceSpecification> all = specification.all_devices();
  REQUIRE(all.size() == 4);
  CHECK(all[0].profile.name == "h100");
  CHECK(all[1].profile.name == "h100");
  CHECK(all[2].profile.name == "l4");
  CHECK(all[3].capacity_bytes() == 16ULL << 30);
  CHECK_FALSE(all[1].memory_bytes);
}

std::string write_file(const std::string& name, const std::string& text) {
  const char* const folder = std::getenv("TEST_TMPDIR");
  const std::string path = std::string(folder ? folder : "/tmp") + "/" + name;
  std::ofstream(path) << text;
  return path;
}

// The l4's description with one part replaced.
std::string changed(const std::string& part, const std::string& by) {
  std::string text = profile_json(*find_profile("l4"));
  const size_t at = text.find(part);
  REQUIRE(at != std::string::npos);
  return text.replace(at, part.size(), by);
}

TEST_CASE("a device of one's own is a file") {
  for (const Profile& profile : profiles()) {
    const ParsedProfile again = parse_profile_json(profile_json(profile));
    REQUIRE_MESSAGE(again.profile, again.error);
    CHECK(profile_json(*again.profile) == profile_json(profile));
  }
  const std::string path =
      write_file("mine.json", changed("\"multiprocessors\":58", "\"multiprocessors\":61"));
  const Specification mine = parsed("@" + path + "+t4,keep=1KiB");
  CHECK(mine.devices.at(0).profile.multiprocessors == 61);
  CHECK(mine.devices.at(1).profile.name == "t4");
  CHECK(contains(error("@no such.json"), "the device of file \"no such.json\": it cannot be read"));
  CHECK(contains(error("@"), "cannot be read"));
  CHECK(contains(error("@/"), "cannot be read"));
  const std::string one_context =
      write_file("mine.json", changed("\"least_context_bytes\":284164096,", ""));
  CHECK(parsed("@" + one_context).devices.at(0).profile.least_context_bytes ==
        find_profile("l4")->context_bytes);
  write_file("mine.json", changed("\"minor\":9,", ""));
  CHECK(contains(error("@" + path), "the field \"minor\" is missing."));
}

TEST_CASE("what is wrong in a device's file is named") {
  const auto why = [](const std::string& text) {
    const ParsedProfile parsed = parse_profile_json(text);
    CHECK_FALSE(parsed.profile);
    return parsed.error;
  };
  for (const char* text : {"", "[]", "1", "{", "{}x", "\xff", "null"})
    CHECK(contains(why(text), "not a JSON object"));
  CHECK(why("{}") == "the field \"name\" is missing.");
  CHECK(why(changed("\"name\":\"l4\"", "\"name\":4")) == "the field \"name\" is not a string.");
  CHECK(
      contains(why(changed("\"major\":8", "\"major\":\"8\"")), "\"major\" is not a whole number"));
  CHECK(contains(why(changed("\"major\":8", "\"major\":-8")), "\"major\" is not a whole number"));
  CHECK(contains(why(changed("\"major\":8", "\"major\":8.5")), "\"major\" is not a whole number"));
  CHECK(contains(why(changed("\"major\":8", "\"major\":1e99")), "\"major\" is not a whole number"));
  CHECK(contains(why(changed("\"major\":8", "\"major\":99999999999")), "\"major\""));
  CHECK(contains(why(changed("\"error_correction\":true", "\"error_correction\":1")),
                 "\"error_correction\" is not true or false."));
  CHECK(why(changed("\"minor\":9", "\"minor\":9,\"cores\":1")) == "there is no field \"cores\".");
  CHECK(contains(
      why(changed("\"least_context_bytes\":284164096", "\"least_context_bytes\":999999999")),
      "\"least_context_bytes\" is more than \"context_bytes\"."));
  CHECK(contains(
      why(changed("\"nominal_memory_bytes\":24152899584", "\"nominal_memory_bytes\":1000000000")),
      "\"total_memory_bytes\" is more than"));
}

Calibration calibration() {
  Calibration result;
  result.device = "NVIDIA A100-SXM4-80GB";
  result.context_bytes = 400 << 20;
  result.libraries_bytes = 30 << 20;
  Convolution convolution{ConvolutionPass::kBackwardFilter,
                          ElementType::kBfloat16,
                          {2, 64, 1, 9},
                          {8, 64, 1, 3},
                          {2, 8, 1, 9},
                          {1, 1},
                          {1, 2},
                          true};
  result.add({convolution, 1000});
  convolution.channels_last = false;
  result.add({convolution, 7});
  result.add({convolution, 5});
  return result;
}

TEST_CASE("a calibration keeps the largest workspace of each convolution, and is read back") {
  const ParsedCalibration again = parse_calibration_json(calibration_json(calibration()));
  REQUIRE_MESSAGE(again.calibration, again.error);
  CHECK(calibration_json(*again.calibration) == calibration_json(calibration()));
  REQUIRE(again.calibration->convolutions.size() == 2);
  Convolution asked = again.calibration->convolutions[1].convolution;
  CHECK(again.calibration->workspace_of(asked) == 7);
  asked.channels_last = true;
  CHECK(again.calibration->workspace_of(asked) == 1000);
  asked.y[3] = 8;
  CHECK_FALSE(again.calibration->workspace_of(asked));
}

TEST_CASE("a calibration gives the context of its device, and of no other") {
  const std::string path = write_file("calibration.json", calibration_json(calibration()));
  const auto context = [&](const std::string& text) {
    const Specification specification = parsed(text);
    return specification.context_bytes_of(specification.devices.at(0)) >> 20;
  };
  CHECK(context("a100,calibration=" + path) == 430);
  CHECK(context("a100,calibration=" + path + ",context=least") == 430);
  CHECK(context("a100,calibration=" + path + ",context=1MiB") == 1);
  CHECK(context("a100:1GiB,calibration=" + path) == 0);
  CHECK(
      contains(error("a100+t4,calibration=" + path),
               "the calibration is of \"NVIDIA A100-SXM4-80GB\", not of the device \"Tesla T4\"."));
}

TEST_CASE("what is wrong in a calibration is named") {
  const auto why = [](std::string text, const std::string& from, const std::string& to) {
    const size_t place = text.find(from);
    REQUIRE(place != std::string::npos);
    const ParsedCalibration parsed = parse_calibration_json(text.replace(place, from.size(), to));
    CHECK_FALSE(parsed.calibration);
    return parsed.error;
  };
  const std::string right = calibration_json(calibration());
  for (const char* text : {"", "[]", "{", "null", "\xff"})
    CHECK(parse_calibration_json(text).error == "it is not a JSON object.");
  CHECK(parse_calibration_json("{}").error == "the field \"schema\" is missing.");
  CHECK(why(right, "calibration/1", "report/2") == "its schema is not memledger.calibration/1.");
  CHECK(why(right, "\"device\":", "\"gpu\":") == "the field \"device\" is missing.");
  CHECK(contains(why(right, "\"libraries_bytes\":", "\"libraries_bytes\":-"),
                 "\"libraries_bytes\" is not a whole number of bytes"));
  CHECK(contains(why(right, "of_process\":true", "of_process\":1"), "\"of_process\" is not true"));
  CHECK(why(right, "\"convolutions\":[", "\"convolution\":[") ==
        "the field \"convolutions\" is not an array.");
  CHECK(contains(why(right, "backward_filter", "sideways"),
                 "convolution 1: the field \"pass\" is not a name that is known."));
  CHECK(contains(why(right, "[2,64,1,9]", "[2,64,1,-9]"), "the field \"x\" is not an array"));
  CHECK(contains(why(right, "channels_last\":true", "channels_last\":1"),
                 "\"channels_last\" is not true or false."));
  const std::string path = write_file("calibration.json", "{}");
  CHECK(contains(error("a100,calibration=" + path), "\": the field \"schema\" is missing."));
}

TEST_CASE("GeForce cards are no peers") {
  CHECK_FALSE(have_peers(*find_profile("rtx4090"), *find_profile("rtx4090")));
  CHECK(have_peers(*find_profile("h100"), *find_profile("h100")));
}

TEST_CASE("a real device is known by its name, or taken for one that is like it") {
  for (const Profile& profile : profiles())
    CHECK(find_profile_of_device(profile.device_name, profile.nominal_memory_bytes) == &profile);
  CHECK(find_profile_of_device("NVIDIA GeForce RTX 4090 D") == find_profile("rtx4090"));
  CHECK(find_profile_of_device("NVIDIA A100-PG509-200", 42505011200) == nullptr);
  CHECK(find_profile_of_device("GRID A100-40 vGPU") == find_profile("a100-40"));
  CHECK(find_profile_of_device("NVIDIA H100 64GB", uint64_t{24} << 30) == nullptr);
  CHECK(find_profile_of_device("NVIDIA GeForce RTX 4060 Ti", uint64_t{16} << 30) ==
        find_profile("rtx4060ti-16"));
  for (const char* name : {"", "NVIDIA GB500", "NVIDIA H1000"})
    CHECK(find_profile_of_device(name) == nullptr);
}

TEST_CASE("paths of files become absolute") {
  const std::string path = write_file("device.json", "{}");
  const std::string folder = path.substr(0, path.rfind('/'));
  CHECK(with_absolute_paths("t4+@" + folder + "/./device.json,count=2") ==
        "t4+@" + path + ",count=2");
  CHECK(with_absolute_paths("@none.json") == "@none.json");
  CHECK(with_absolute_paths("t4,calibration=" + folder + "/./device.json,count=2") ==
        "t4,calibration=" + path + ",count=2");
  CHECK(with_absolute_paths("h100:4GiB+l4,keep=1B") == "h100:4GiB+l4,keep=1B");
}

TEST_CASE(
    "an amount just above the most is refused, and a message shows no terminal what it obeys") {
  CHECK(memory("h200:1024GiB") == uint64_t{1} << 40);
  CHECK(contains(error("h200:1024.5GiB"), "more memory than a virtual GPU can have"));
  CHECK(contains(error("h200,keep=1099.999GB"), "more memory than a virtual GPU can have"));
  CHECK(contains(error("\x1b[2J\xff\n"), "\"?[2J??\" is not a known device"));
  CHECK(contains(error("h200,count=\x1b[2J"), "count=?[2J is not a number"));
  CHECK(error(std::string(100000, 'x')).size() < 900);
}

}  // namespace
}  // namespace memledger::virtual_gpu
