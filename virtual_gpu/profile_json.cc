#include "virtual_gpu/profile_json.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <variant>

namespace memledger::virtual_gpu {
namespace {

using Json = nlohmann::ordered_json;
using Member =
    std::variant<std::string Profile::*, int Profile::*, uint64_t Profile::*, bool Profile::*>;

struct Field {
  const char* name;
  Member member;
  uint64_t least = 0;  // of a number
  bool required = true;
};

constexpr uint64_t kLeastMemory = uint64_t{64} << 20;
constexpr uint64_t kMostMemory = uint64_t{1} << 40;

constexpr Field kFields[] = {
    {"name", &Profile::name},
    {"device_name", &Profile::device_name},
    {"major", &Profile::major, 5},
    {"minor", &Profile::minor},
    {"multiprocessors", &Profile::multiprocessors, 1},
    {"total_memory_bytes", &Profile::total_memory_bytes, kLeastMemory},
    {"nominal_memory_bytes", &Profile::nominal_memory_bytes, kLeastMemory},
    {"sure_memory_bytes", &Profile::sure_memory_bytes, 0, false},
    {"context_bytes", &Profile::context_bytes},
    {"least_context_bytes", &Profile::least_context_bytes, 0, false},
    {"l2_cache_bytes", &Profile::l2_cache_bytes},
    {"persisting_l2_cache_bytes", &Profile::persisting_l2_cache_bytes},
    {"shared_memory_per_block_optin", &Profile::shared_memory_per_block_optin,
     kSharedMemoryPerBlock},
    {"shared_memory_per_multiprocessor", &Profile::shared_memory_per_multiprocessor,
     kSharedMemoryPerBlock},
    {"reserved_shared_memory_per_block", &Profile::reserved_shared_memory_per_block},
    {"max_threads_per_multiprocessor", &Profile::max_threads_per_multiprocessor,
     kMaxThreadsPerBlock},
    {"max_blocks_per_multiprocessor", &Profile::max_blocks_per_multiprocessor, 1},
    {"clock_khz", &Profile::clock_khz},
    {"memory_clock_khz", &Profile::memory_clock_khz},
    {"memory_bus_bits", &Profile::memory_bus_bits},
    {"async_engines", &Profile::async_engines},
    {"single_to_double_ratio", &Profile::single_to_double_ratio, 1},
    {"error_correction", &Profile::error_correction},
    {"pci_device_id", &Profile::pci_device_id},
    {"source", &Profile::source, 0, false},
    {"memory_note", &Profile::memory_note, 0, false},
    {"context_source", &Profile::context_source, 0, false},
};

std::string named(std::string_view name) { return "\"" + std::string(name) + "\""; }

// Reads one field, or returns what it should have been.
struct Reader {
  const Json& value;
  const Field& field;
  Profile& profile;

  std::string operator()(std::string Profile::*member) const {
    if (!value.is_string()) return "a string";
    profile.*member = value.get_ref<const std::string&>();
    return "";
  }
  std::string operator()(bool Profile::*member) const {
    if (!value.is_boolean()) return "true or false";
    profile.*member = value.get<bool>();
    return "";
  }
  std::string operator()(int Profile::*member) const {
    return number(member, std::numeric_limits<int>::max());
  }
  std::string operator()(uint64_t Profile::*member) const { return number(member, kMostMemory); }

  template <typename T>
  std::string number(T Profile::*member, uint64_t most) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() < field.least ||
        value.get<uint64_t>() > most) {
      return "a whole number from " + std::to_string(field.least) + " to " + std::to_string(most);
    }
    profile.*member = static_cast<T>(value.get<uint64_t>());
    return "";
  }
};

ParsedProfile failed(std::string why) { return {std::nullopt, std::move(why)}; }

// What is wrong with fields that are right each for itself.
std::string disagreement(const Profile& profile) {
  if (profile.name.empty()) return "the field \"name\" is empty.";
  if (profile.total_memory_bytes > profile.nominal_memory_bytes)
    return "the field \"total_memory_bytes\" is more than \"nominal_memory_bytes\".";
  if (profile.context_bytes >= profile.total_memory_bytes)
    return "the field \"context_bytes\" is all of \"total_memory_bytes\".";
  if (profile.least_context_bytes > profile.context_bytes)
    return "the field \"least_context_bytes\" is more than \"context_bytes\".";
  if (profile.shared_memory_per_block_optin > profile.shared_memory_per_multiprocessor) {
    return "the field \"shared_memory_per_block_optin\" is more than "
           "\"shared_memory_per_multiprocessor\".";
  }
  return "";
}

}  // namespace

std::string profile_json(const Profile& profile) {
  Json object = Json::object();
  for (const Field& field : kFields) {
    std::visit([&](auto member) { object[field.name] = profile.*member; }, field.member);
  }
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

ParsedProfile parse_profile_json(std::string_view text) {
  // Never throws: what it throws for otherwise is asked before.
  const Json object = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return failed("it is not a JSON object.");
  Profile profile{};
  size_t read = 0;
  for (const Field& field : kFields) {
    const auto value = object.find(field.name);
    if (value == object.end()) {
      if (field.required) return failed("the field " + named(field.name) + " is missing.");
      continue;
    }
    ++read;
    const std::string wanted = std::visit(Reader{*value, field, profile}, field.member);
    if (!wanted.empty())
      return failed("the field " + named(field.name) + " is not " + wanted + ".");
  }
  if (read != object.size()) {
    for (const auto& [name, value] : object.items()) {
      bool known = false;
      for (const Field& field : kFields) known = known || name == field.name;
      if (!known) return failed("there is no field " + named(name) + ".");
    }
  }
  if (!object.contains("least_context_bytes")) profile.least_context_bytes = profile.context_bytes;
  if (!object.contains("sure_memory_bytes")) profile.sure_memory_bytes = profile.total_memory_bytes;
  const std::string why = disagreement(profile);
  return why.empty() ? ParsedProfile{profile, ""} : failed(why);
}

}  // namespace memledger::virtual_gpu
