"""Stands in for torchvision, whose wheel is built for CUDA and cannot load beside a CPU torch.

SGLang imports a few names of it for image models; FutureMap uses none of them. Any name of any
submodule is a class that does nothing, any attribute of such a class is its own name.
"""

import importlib.machinery
import sys
import types


class _Named(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Stub(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Named(name, (), {})


class _Finder:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("torchvision."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Stub(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, _Finder())
