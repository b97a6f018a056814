#pragma once

extern "C" {

// Returns what pip would install to make convolutions' workspaces those of cuDNN itself,
// "nvidia-cudnn-cu13==9.19.*"; nullptr if none has been modelled because it was missing. Found by
// name (dlsym): nullptr where no virtual GPU is there.
__attribute__((visibility("default"))) const char* memledger_virtual_gpu_missing_cudnn();

}  // extern "C"
