// A user's program that works on cuda:0 and, in each step, writes to the files of the folder that
// it stands in, in the ways in which programs do; for dry_run_storm.py.
//
//   dry_run_storm_program STEPS
//
// What fails is left: the next way is tried.

// NOLINTBEGIN: it does on purpose what clang-tidy warns of.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

void append(const char* path, const std::string& text) {
  const int file = open(path, O_WRONLY | O_APPEND | O_CREAT, 0644);
  if (file < 0) return;
  if (write(file, text.data(), text.size()) < 0) std::perror(path);
  close(file);
}

void put(const char* path, const std::vector<char>& bytes) {
  std::FILE* const file = std::fopen(path, "w");
  if (file == nullptr) return;
  std::fwrite(bytes.data(), 1, bytes.size(), file);
  std::fclose(file);
}

void put_in_place(const char* path) {
  const int file = open(path, O_RDWR);
  if (file < 0) return;
  const char zeros[4096] = {};
  if (pwrite(file, zeros, sizeof zeros, 0) < 0) std::perror(path);
  void* const mapped = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped != MAP_FAILED) {
    std::memset(mapped, 0, 4096);
    msync(mapped, 4096, MS_SYNC);
    munmap(mapped, 4096);
  }
  close(file);
}

void share(const char* name) {
  const int file = shm_open(name, O_RDWR | O_CREAT, 0600);
  if (file < 0) return;
  if (ftruncate(file, 4096) != 0) std::perror(name);
  close(file);
}

void use_temporary_folder() {
  char path[] = "/tmp/storm-XXXXXX";
  const int file = mkstemp(path);
  if (file < 0) return;
  if (write(file, "kept", 4) < 0) std::perror(path);
  close(file);
}

void shell(const char* command) {
  if (std::system(command) < 0) std::perror("sh");
}

void change_what_is_there() {
  if (unlink("old.pt") != 0) std::perror("old.pt");
  if (truncate("history.txt", 0) != 0) std::perror("history.txt");
  chmod("notes.txt", 0600);
  const timespec times[2] = {{1, 0}, {1, 0}};
  utimensat(AT_FDCWD, "notes.txt", times, 0);
  setxattr("notes.txt", "user.storm", "1", 1, 0);
  if (link("notes.txt", "notes_again.txt") != 0) std::perror("notes_again.txt");
  if (symlink("notes.txt", "latest") != 0) std::perror("latest");
  if (std::rename("data", "data.old") != 0) std::perror("data");
  mkdir("out", 0755);
  append("out/result.txt", "zeros\n");
}

}  // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 1;
  const auto options = at::TensorOptions(at::kCUDA).dtype(at::kByte);
  std::vector<at::Tensor> kept;
  for (int step = 0; step < steps; ++step) {
    kept.push_back(at::zeros({1 << 20}, options));
    const at::Tensor checkpoint = kept.back().cpu();
    const auto* const bytes = static_cast<const char*>(checkpoint.const_data_ptr());
    append("train.log", "zeros " + std::to_string(step) + "\n");
    put("ckpt.tmp", std::vector<char>(bytes, bytes + 65536));
    if (std::rename("ckpt.tmp", "ckpt.pt") != 0) std::perror("ckpt.pt");
    put_in_place("state.bin");
    change_what_is_there();
    share("/storm");
    use_temporary_folder();
    shell("echo child >>train.log; rm -f old_too.pt; mv -f history.txt moved.txt 2>/dev/null");
    shell(
        "exec env -i /bin/sh -c 'echo bare child >>train.log; echo zeros >ckpt.pt; echo 1 "
        ">made_by_child'");
    usleep(20'000);
  }
  return 0;
}
// NOLINTEND
