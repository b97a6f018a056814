// A user's C program that knows nothing of LibTorch and loads a plug-in that does.
//
//   ends_table_host PLUGIN ARGUMENT…
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char** argv) {
  void* const plugin = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (plugin == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 97;
  }
  int (*const run)(int, char**) = (int (*)(int, char**))dlsym(plugin, "table_main");
  return run == NULL ? 97 : run(argc - 1, argv + 1);
}
