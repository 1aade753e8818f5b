/* Receives what FlyDSL's host launcher asks of a GPU runtime, and hands it to one callback.
 *
 * The names and signatures are those of MLIR's GPU runtime wrappers, which the launcher calls.
 * Built at run time with the system's C compiler; see emulator.py. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  char *text;
} Module;

typedef struct {
  Module *module;
  char *name;
} Function;

typedef void (*Launch)(const char *text, const char *name, const int64_t *grid_block, uint32_t smem,
                       void **params, uint64_t count);

static Launch on_launch;

void flydsl_emulator_on_launch(Launch callback) { on_launch = callback; }

static Module *load(const void *data, size_t size) {
  Module *module = malloc(sizeof *module);
  module->text = malloc(size + 1);
  memcpy(module->text, data, size);
  module->text[size] = 0;
  return module;
}

void *mgpuModuleLoad(const void *data, size_t size) { return load(data, size); }

void *mgpuModuleLoadJIT(const void *data, int level) {
  (void)level;
  return load(data, strlen(data));
}

void mgpuModuleUnload(void *handle) {
  Module *module = handle;
  free(module->text);
  free(module);
}

void *mgpuModuleGetFunction(void *module, const char *name) {
  Function *function = malloc(sizeof *function);
  function->module = module;
  function->name = strdup(name);
  return function;
}

void mgpuLaunchKernel(void *handle, intptr_t gx, intptr_t gy, intptr_t gz, intptr_t bx, intptr_t by,
                      intptr_t bz, int32_t smem, void *stream, void **params, void **extra,
                      size_t count) {
  Function *function = handle;
  int64_t shape[6] = {gx, gy, gz, bx, by, bz};
  (void)stream;
  (void)extra;
  if (on_launch)
    on_launch(function->module->text, function->name, shape, (uint32_t)smem, params, count);
}

void *mgpuStreamCreate(void) { return 0; }
void mgpuStreamDestroy(void *stream) { (void)stream; }
void mgpuStreamSynchronize(void *stream) { (void)stream; }
