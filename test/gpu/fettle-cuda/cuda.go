// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package main

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// What is used of CUDA's driver API, declared here so that no toolkit is needed to build. A device is a number and CUdeviceptr an address.
// All other handles are pointers, declared as numbers because nothing here looks behind them. _v2 are the names since CUDA 3.2, in which
// sizes have 64 bits.
#define CALLS(X) \
	X(cuInit, (unsigned flags), (flags)) \
	X(cuDriverGetVersion, (int *version), (version)) \
	X(cuDeviceGetCount, (int *count), (count)) \
	X(cuDeviceGet, (int *device, int index), (device, index)) \
	X(cuDeviceGetName, (char *name, int size, int device), (name, size, device)) \
	X(cuDeviceGetUuid, (unsigned char *uuid, int device), (uuid, device)) \
	X(cuDeviceGetAttribute, (int *value, int attribute, int device), (value, attribute, device)) \
	X(cuDevicePrimaryCtxRetain, (uintptr_t *context, int device), (context, device)) \
	X(cuDevicePrimaryCtxRelease_v2, (int device), (device)) \
	X(cuCtxSetCurrent, (uintptr_t context), (context)) \
	X(cuCtxSynchronize, (void), ()) \
	X(cuModuleLoadDataEx, (uintptr_t *module, const char *image, unsigned n, int *options, void **values), \
		(module, image, n, options, values)) \
	X(cuModuleUnload, (uintptr_t module), (module)) \
	X(cuModuleGetFunction, (uintptr_t *function, uintptr_t module, const char *name), (function, module, name)) \
	X(cuMemAlloc_v2, (uint64_t *address, size_t size), (address, size)) \
	X(cuMemFree_v2, (uint64_t address), (address)) \
	X(cuMemcpyHtoD_v2, (uint64_t to, const void *from, size_t size), (to, from, size)) \
	X(cuMemcpyDtoH_v2, (void *to, uint64_t from, size_t size), (to, from, size)) \
	X(cuLaunchKernel, (uintptr_t function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, \
		void *stream, void **arguments, void **extra), (function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra)) \
	X(cuGetErrorName, (int code, const char **name), (code, name))

#define DEFINE(name, parameters, arguments) \
	static int (*name##_loaded) parameters; \
	static int name parameters { return name##_loaded arguments; }
CALLS(DEFINE)

// load opens the library and finds each call. It returns NULL, or what is wrong.
static const char *load(const char *file) {
	static char missing[100];
	void *library = dlopen(file, RTLD_NOW | RTLD_GLOBAL);
	if (library == NULL)
		return dlerror();
#define FIND(name, parameters, arguments) \
	if ((*(void **)&name##_loaded = dlsym(library, #name)) == NULL) { \
		snprintf(missing, sizeof missing, "%s has no %s", file, #name); \
		return missing; \
	}
	CALLS(FIND)
	return NULL;
}

// errorName returns CUDA's name for an error, or NULL.
static const char *errorName(int code) {
	const char *name = NULL;
	return cuGetErrorName(code, &name) == 0 ? name : NULL;
}

// start starts the kernel on n elements. The arguments are pointers to pointers, which cgo does not let Go code hand over.
static int start(uintptr_t function, uint64_t c, uint64_t a, uint64_t b, uint32_t n) {
	void *arguments[] = {&c, &a, &b, &n};
	return cuLaunchKernel(function, (n + 255) / 256, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL);
}
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

// loadLibrary opens CUDA's library. The other functions here must not be called before.
func loadLibrary(file string) error {
	name := C.CString(file)
	defer C.free(unsafe.Pointer(name))
	if wrong := C.load(name); wrong != nil {
		return errors.New(C.GoString(wrong))
	}
	return nil
}

// failed returns nil for CUDA_SUCCESS, else an error with CUDA's name for it.
func failed(call string, code C.int) error {
	if code == 0 {
		return nil
	}
	name := C.errorName(code)
	if name == nil {
		return fmt.Errorf("%s: error %d", call, code)
	}
	return fmt.Errorf("%s: %s (%d)", call, C.GoString(name), code)
}

func initialise() error { return failed("cuInit", C.cuInit(0)) }

// driverVersion is the newest CUDA that the driver knows, such as "13.0".
func driverVersion() (string, error) {
	var v C.int
	err := failed("cuDriverGetVersion", C.cuDriverGetVersion(&v))
	return fmt.Sprintf("%d.%d", v/1000, v%1000/10), err
}

func deviceCount() (int, error) {
	var n C.int
	err := failed("cuDeviceGetCount", C.cuDeviceGetCount(&n))
	return int(n), err
}

// gpu is CUDA's number for a device.
type gpu C.int

func deviceAt(index int) (gpu, error) {
	var d C.int
	err := failed("cuDeviceGet", C.cuDeviceGet(&d, C.int(index)))
	return gpu(d), err
}

func (g gpu) name() (string, error) {
	var buffer [256]C.char
	err := failed("cuDeviceGetName", C.cuDeviceGetName(&buffer[0], C.int(len(buffer)), C.int(g)))
	return C.GoString(&buffer[0]), err
}

// uuid is written as nvidia-smi does.
func (g gpu) uuid() (string, error) {
	var u [16]C.uchar
	err := failed("cuDeviceGetUuid", C.cuDeviceGetUuid(&u[0], C.int(g)))
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:]), err
}

// computeCapability is such as "9.0".
func (g gpu) computeCapability() (string, error) {
	// CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
	const attributeMajor, attributeMinor = 75, 76
	var major, minor C.int
	err := errors.Join(
		failed("cuDeviceGetAttribute", C.cuDeviceGetAttribute(&major, attributeMajor, C.int(g))),
		failed("cuDeviceGetAttribute", C.cuDeviceGetAttribute(&minor, attributeMinor, C.int(g))))
	return fmt.Sprintf("%d.%d", major, minor), err
}

// retain makes the device's primary context, and makes it the current one of this thread.
func (g gpu) retain() error {
	var context C.uintptr_t
	if err := failed("cuDevicePrimaryCtxRetain", C.cuDevicePrimaryCtxRetain(&context, C.int(g))); err != nil {
		return err
	}
	if err := failed("cuCtxSetCurrent", C.cuCtxSetCurrent(context)); err != nil {
		return errors.Join(err, g.release())
	}
	return nil
}

func (g gpu) release() error {
	return failed("cuDevicePrimaryCtxRelease", C.cuDevicePrimaryCtxRelease_v2(C.int(g)))
}

// module is code that the current context has loaded.
type module C.uintptr_t

// loadModule has the driver compile PTX, and load what comes of it.
func loadModule(ptx string) (module, error) {
	text := C.CString(ptx)
	defer C.free(unsafe.Pointer(text))
	var m C.uintptr_t
	err := failed("cuModuleLoadDataEx", C.cuModuleLoadDataEx(&m, text, 0, nil, nil))
	return module(m), err
}

func (m module) unload() error { return failed("cuModuleUnload", C.cuModuleUnload(C.uintptr_t(m))) }

// launch runs a function with the arguments (c, a, b, n) on n elements, and waits for its end.
func (m module) launch(function string, c, a, b memory, n int) error {
	name := C.CString(function)
	defer C.free(unsafe.Pointer(name))
	var f C.uintptr_t
	if err := failed("cuModuleGetFunction", C.cuModuleGetFunction(&f, C.uintptr_t(m), name)); err != nil {
		return err
	}
	if err := failed("cuLaunchKernel", C.start(f, C.uint64_t(c), C.uint64_t(a), C.uint64_t(b), C.uint32_t(n))); err != nil {
		return err
	}
	return failed("cuCtxSynchronize", C.cuCtxSynchronize())
}

// memory is an address in the memory of the current context's device.
type memory C.uint64_t

// allocate returns memory for n numbers.
func allocate(n int) (memory, error) {
	var address C.uint64_t
	err := failed("cuMemAlloc", C.cuMemAlloc_v2(&address, C.size_t(n*numberSize)))
	return memory(address), err
}

func (m memory) free() error { return failed("cuMemFree", C.cuMemFree_v2(C.uint64_t(m))) }

const numberSize = int(unsafe.Sizeof(int32(0)))

func (m memory) write(numbers []int32) error {
	size := C.size_t(len(numbers) * numberSize)
	return failed("cuMemcpyHtoD", C.cuMemcpyHtoD_v2(C.uint64_t(m), unsafe.Pointer(unsafe.SliceData(numbers)), size))
}

func (m memory) read(numbers []int32) error {
	size := C.size_t(len(numbers) * numberSize)
	return failed("cuMemcpyDtoH", C.cuMemcpyDtoH_v2(unsafe.Pointer(unsafe.SliceData(numbers)), C.uint64_t(m), size))
}
