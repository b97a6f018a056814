#include "runner/written_list.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "runner/inside/unreal_files.h"

namespace memledger::runner {

std::string make_written_list(int process) {
  const int low = memfd_create(inside::kWrittenListName, MFD_CLOEXEC);
  if (low < 0) return "";
  // Programs expect their first descriptors to have low numbers.
  int list = -1;
  for (const int number : {900, 200, 50}) {
    if (list < 0) list = fcntl(low, F_DUPFD, number);
  }
  close(low);
  const inside::WrittenListHeader header = {};
  struct stat status {};
  if (list >= 0 && write(list, &header, sizeof header) == sizeof header &&
      fstat(list, &status) == 0)
    return absl::StrCat(process, ":", list, ":", status.st_ino);
  if (list >= 0) close(list);
  return "";
}

}  // namespace memledger::runner
