#ifndef MEMLEDGER_PYTHON_C_INTERFACE_H_
#define MEMLEDGER_PYTHON_C_INTERFACE_H_

/* memledger by C functions, for Python's ctypes (python/memledger) and other languages. They are in
 * libmemledger.so.
 *
 *   char* error = memledger_reporter_new(&reporter);
 *   if (error == NULL) error = memledger_reporter_text(reporter, "text", &options, &text);
 *   if (error != NULL) fprintf(stderr, "%s\n", error);
 *
 * Functions that return char* return NULL, or one sentence on what went wrong; then what they would
 * have given is untouched. Nothing is thrown. Texts are UTF-8 that ends with 0. Those that are
 * given out, errors included, are the caller's: memledger_free(). Those handed in are copied.
 *
 * A tensor is the address of its c10::TensorImpl, Tensor._cdata in Python: the caller holds a
 * reference during the call, and memledger holds none after it. A handle is freed once by its
 * …_free(), which accepts NULL. Devices are LibTorch's texts, cuda:0; NULL: all, or the default
 * one.
 *
 * Thread-safety: that of the class behind each handle. In Python all is called with Python's lock.
 */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rises when a function changes or goes. */
#define MEMLEDGER_C_INTERFACE 1

int memledger_c_interface(void);
/* Return memledger's version, 0.1.0, and LibTorch's release that it was built for, 2.11. Not to be
 * freed. */
const char* memledger_version(void);
const char* memledger_built_for(void);
void memledger_free(char* text);

/* ---- tracking ---- */

/* Activates the registry for the life of the process, and has PyTorch's hooks tell names. */
char* memledger_start(void);
/* Adopts a storage that was born before tracking. Returns its id, or 0. */
uint64_t memledger_know(void* tensor);

struct memledger_counters {
  int64_t current_bytes, peak_bytes, allocated_bytes, freed_bytes;
  int64_t current_count, peak_count, allocated_count, freed_count;
};
char* memledger_read_counters(const char* device, struct memledger_counters* counters);
char* memledger_reset_peak(const char* device);

/* A label of the calling thread, until it is left there. Labels nest. */
typedef struct memledger_label memledger_label;
char* memledger_enter_label(const char* text, memledger_label** label);
void memledger_leave_label(memledger_label* label);

/* ---- modules ---- */

/* Stands for a module of another language: a tree of parts with tensors, which are held only from
 * memledger_module_tensor() to memledger_module_let_go(). */
typedef struct memledger_module memledger_module;
enum { MEMLEDGER_PARAMETER = 0, MEMLEDGER_BUFFER = 1 };

char* memledger_module_new(const char* type, memledger_module** module);
/* Makes the part at a path, encoder.layers.0, and what is above it; gives it its type. */
char* memledger_module_part(memledger_module* module, const char* path, const char* type);
/* Puts a tensor into the part at `path`, which is "" for the module itself. */
char* memledger_module_tensor(memledger_module* module, const char* path, const char* name,
                              int role, void* tensor);
/* Lets go of all tensors. */
void memledger_module_let_go(memledger_module* module);
void memledger_module_free(memledger_module* module);

/* ---- registry/training_paused.h ---- */

/* Begins (1) or ends (0) a ScopedTrainingPaused of the calling thread. They nest. */
void memledger_training_paused(int begins);

/* ---- reporter/mem_reporter.h ---- */

typedef struct memledger_reporter memledger_reporter;

struct memledger_report_options {
  int verbose;
  const char* device; /* NULL: all */
  int64_t max_rows;   /* below 0: the default */
  const char* sort;   /* bytes, size, name or birth; NULL: bytes */
  const char* group;  /* alike, nothing, role, module or operator; NULL: alike */
  int of_peak;        /* the instant of the highest bytes of `device`, which must be given */
};

char* memledger_reporter_new(memledger_reporter** reporter);
char* memledger_reporter_add_module(memledger_reporter* reporter, const char* prefix,
                                    const memledger_module* module);
char* memledger_reporter_add_tensor(memledger_reporter* reporter, const char* name, void* tensor,
                                    int is_input);
char* memledger_reporter_add_graph(memledger_reporter* reporter, void* loss);
char* memledger_reporter_add_state(memledger_reporter* reporter, const char* name, void* tensor);
/* Forgets a module's prefix or a tensor's name. */
char* memledger_reporter_remove(memledger_reporter* reporter, const char* name);
/* Formats: text, json, csv, html. */
char* memledger_reporter_text(const memledger_reporter* reporter, const char* format,
                              const struct memledger_report_options* options, char** text);
/* Asks for the tensor or, where that is NULL, for the name. Formats: text, json. */
char* memledger_reporter_why(const memledger_reporter* reporter, void* tensor, const char* name,
                             const char* format, char** text);
void memledger_reporter_free(memledger_reporter* reporter);

/* ---- tracker/mem_tracker.h ---- */

typedef struct memledger_tracker memledger_tracker;

struct memledger_tracker_options {
  int detail, verbose, colons, echo;
  const char* path;
  const char* file_name;
  const char* device; /* NULL: cuda:0 if there is one, else cpu */
};

char* memledger_tracker_new(const struct memledger_tracker_options* options,
                            memledger_tracker** tracker);
char* memledger_tracker_add_module(memledger_tracker* tracker, const char* prefix,
                                   const memledger_module* module);
char* memledger_tracker_add_tensor(memledger_tracker* tracker, const char* name, void* tensor);
char* memledger_tracker_add_state(memledger_tracker* tracker, const char* name, void* tensor);
char* memledger_tracker_remove(memledger_tracker* tracker, const char* name);
/* Writes a block to the log, and gives it as text and as JSON; each may be NULL. */
char* memledger_tracker_track(memledger_tracker* tracker, const char* label, const char* file,
                              const char* function, int line, char** text, char** json);
char* memledger_tracker_log_path(const memledger_tracker* tracker, char** path);
char* memledger_tracker_clear_cache(memledger_tracker* tracker);
char* memledger_tracker_tensors(const memledger_tracker* tracker, char** text);
/* In MiB; NaN: unknown. */
char* memledger_tracker_usage(const memledger_tracker* tracker, double* tensors, double* allocated);
void memledger_tracker_free(memledger_tracker* tracker);

/* ---- graph/saved_tensors.h ---- */

typedef struct memledger_saved memledger_saved;

struct memledger_saved_options {
  void* const* exclude;
  size_t excluded;
  void* const* inputs;
  size_t input_count;
  const char* device; /* NULL: all */
  int cuda_blocks;    /* counts blocks of 512 bytes */
};

/* The module may be NULL. */
char* memledger_saved_new(void* const* roots, size_t count, const memledger_module* module,
                          const struct memledger_saved_options* options, memledger_saved** saved);
/* get_tensors_saved_for_backward(). */
char* memledger_saved_by_storage(void* root, const memledger_module* module, int duplicate,
                                 memledger_saved** saved);
int64_t memledger_saved_total_bytes(const memledger_saved* saved);
int memledger_saved_is_complete(const memledger_saved* saved);
/* Formats: text, json, csv, dot. */
char* memledger_saved_text(const memledger_saved* saved, const char* format, char** text);
void memledger_saved_free(memledger_saved* saved);

/* ---- tracker/model_size.h ---- */

/* Measures what runs between begin and end on the calling thread. */
typedef struct memledger_size_run memledger_size_run;

/* type_size: bytes of an element, 0 for each tensor's own. The module holds its tensors from before
 * begin until after end. */
char* memledger_size_begin(memledger_module* module, int64_t type_size, void* const* inputs,
                           size_t count, memledger_size_run** run);
/* Frees the run, whether or not it measured. Formats: text, json. */
char* memledger_size_end(memledger_size_run* run, void* const* outputs, size_t count, char** text,
                         char** json);
void memledger_size_free(memledger_size_run* run);

/* ---- tracker/memory_profiler.h ---- */

typedef struct memledger_profiler memledger_profiler;

/* The module holds its tensors now and during each call, and lives as long as the profiler. */
char* memledger_profiler_new(memledger_module* module, int print_period, int csv,
                             const char* csv_folder, const char* device,
                             memledger_profiler** profiler);
/* Gives what is to be printed; it may be empty. */
char* memledger_profiler_record_stats(memledger_profiler* profiler, char** text);
char* memledger_profiler_epoch_end(memledger_profiler* profiler, char** text);
char* memledger_profiler_csv_path(const memledger_profiler* profiler, char** path);
void memledger_profiler_free(memledger_profiler* profiler);

/* ---- tracker/line_profiler.h ---- */

typedef struct memledger_lines memledger_lines;

char* memledger_set_target(const char* device);
/* Of Python functions. */
char* memledger_lines_new(memledger_lines** lines);
/* Adds a function by what Python's frames say of it, and its source from first_line on, with line
 * ends. `name` is what the table shows. */
char* memledger_lines_add_function(memledger_lines* lines, const char* name, const char* frame_name,
                                   const char* file, int first_line, const char* source);
char* memledger_lines_enable(memledger_lines* lines);
char* memledger_lines_disable(memledger_lines* lines);
char* memledger_lines_clear(memledger_lines* lines);
/* Formats: text, json, html. `function`: only those of that name, in html of those names, one per
 * line; "": all. `columns`: one per line; "": the default ones. */
char* memledger_lines_text(const memledger_lines* lines, const char* format, const char* function,
                           const char* columns, char** text);
void memledger_lines_free(memledger_lines* lines);

/* ---- tracker/courtesy.h ---- */

typedef struct memledger_courtesy memledger_courtesy;

struct memledger_courtesy_options {
  const char* place; /* pageable, pinned or file */
  const char* folder;
  const char* device; /* NULL: all CUDA devices */
  int workspaces;     /* 0, 1; below 0: as the library sees fit */
};

char* memledger_courtesy_new(const struct memledger_courtesy_options* options,
                             memledger_courtesy** courtesy);
char* memledger_courtesy_add_tensor(memledger_courtesy* courtesy, void* tensor);
char* memledger_courtesy_yield(memledger_courtesy* courtesy);
char* memledger_courtesy_restore(memledger_courtesy* courtesy);
int64_t memledger_courtesy_yielded_bytes(const memledger_courtesy* courtesy);
/* What stayed, a line each. */
char* memledger_courtesy_unmoved(const memledger_courtesy* courtesy, char** text);
/* Restores. */
void memledger_courtesy_free(memledger_courtesy* courtesy);

/* ---- prediction/predict.h ---- */

/* Returns NULL, or what the step failed with. */
typedef const char* (*memledger_step)(void);

struct memledger_predict_options {
  const char* gpu;
  int64_t capacity_bytes; /* below 0: all that the device has */
  int least_runs, most_runs, timeout_s;
};

char* memledger_predict(memledger_step step, const struct memledger_predict_options* options,
                        const char* file, const char* function, int line, char** sentence,
                        char** json);

#ifdef __cplusplus
}
#endif

#endif /* MEMLEDGER_PYTHON_C_INTERFACE_H_ */
