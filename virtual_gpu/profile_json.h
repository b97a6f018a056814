#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "virtual_gpu/profiles.h"

namespace memledger::virtual_gpu {

// A profile as a JSON object, one member for each field of Profile.
std::string profile_json(const Profile& profile);

struct ParsedProfile {
  std::optional<Profile> profile;
  // A sentence that names the field, where there is no profile.
  std::string error;
};

// Reads what profile_json writes. Only the sources and the least context, which is then the
// context, may be left out.
ParsedProfile parse_profile_json(std::string_view text);

}  // namespace memledger::virtual_gpu
