// A program without the C library's shared part: no library can be preloaded into it. Writes to the
// files that it is given.
#include <fcntl.h>
#include <unistd.h>

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const int file = open(argv[i], O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file < 0 || write(file, "zeros\n", 6) != 6 || close(file) != 0) return 1;
  }
  return 0;
}
