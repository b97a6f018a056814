R"PYTHON(#"
# Finds who holds what is alive in a Python program: follows what the program can reach to its
# tensors, and, of the largest that are not reached so, what refers to them. Included as text, as
# python_names.py is, and before it.
#
# Called with Python's lock. Runs no code of the program's: attributes are read by the slots of
# Python's own types, so that no property, no __getattr__ and no hook is called. Keeps nothing alive
# beyond the search, and ends within half a second.

import gc
import itertools
import sys
import time
import types

SECONDS_FORWARD, SECONDS_IN_ALL = 0.3, 0.5
MOST_ITEMS = 10000  # of one container
MOST_NODES = 50000  # of graphs, looked at for functions that are written in Python
MOST_BACKWARD = 12  # tensors whose referrers are looked for
MOST_LEVELS = 8
MOST_NODES_OF_CYCLE = 1000
UNCAUGHT = "the uncaught exception"
VARIABLE, GRAPH, EXCEPTION, CYCLE = range(4)  # of which kind the holder is, as in holders.h

mro_of = type.__dict__["__mro__"].__get__
class_dict_of = type.__dict__["__dict__"].__get__
module_dict_of = types.ModuleType.__dict__["__dict__"].__get__
GENERATORS = {
    types.GeneratorType: ("gi_frame", "generator"),
    types.CoroutineType: ("cr_frame", "coroutine"),
    types.AsyncGeneratorType: ("ag_frame", "generator"),
}
SKIPPED = {types.ModuleType, types.CodeType, types.BuiltinFunctionType, types.FrameType}


def place_of(frame, line=None):
    """Returns ` in run() (train.py:14)`."""
    code = frame.f_code
    file = code.co_filename.rsplit("/", 1)[-1]
    name = code.co_name
    called = "" if name.startswith("<") else name + "() "
    return " in %s(%s:%s)" % (called, file, line or frame.f_lineno or code.co_firstlineno)


def locals_of(frame):
    """Copies the pairs of a frame's locals. Leaves no snapshot of a function's, which up to Python
    3.12 would keep them alive."""
    if frame.f_trace is not None:
        return []  # its tracer may be writing them
    found = frame.f_locals
    pairs = list(found.items())
    of_function = frame.f_code.co_flags & 1  # CO_OPTIMIZED
    if of_function and type(found) is dict and sys.getrefcount(found) <= 3:
        found.clear()
    return pairs


class Edge:
    """How one object holds the next one."""

    __slots__ = ("kind", "text", "about", "context")

    def __init__(self, kind, text="", about="", context=""):
        self.kind, self.text, self.about, self.context = kind, text, about, context


class Search:
    def __init__(self, books, at_exit):
        import torch

        self.books = books
        self.begun = time.monotonic()
        self.Tensor, self.Function = torch._C.TensorBase, torch._C._FunctionBase
        self.address_of = torch._C.TensorBase.__dict__["_cdata"].__get__
        self.node_of = torch._C.TensorBase.__dict__["grad_fn"].__get__
        self.next_of = torch._C._FunctionBase.__dict__["next_functions"].__get__
        self.requires_of = torch._C.TensorBase.__dict__["requires_grad"].__get__
        self.is_leaf_of = torch._C.TensorBase.__dict__["is_leaf"].__get__
        self.gradient_of = torch._C.TensorBase.__dict__["grad"].__get__
        self.is_alone = at_exit and len(sys._current_frames()) == 1
        self.saved_of = torch._C._FunctionBase.__dict__["_raw_saved_tensors"].__get__
        self.things, self.parents, self.edges = [], [], []  # by index
        self.index_of = {}  # by id
        self.nodes = {}  # of graphs, by id
        self.mros = {}
        self.kinds = {}
        self.found = {}  # storage: index of a tensor
        self.told = set()
        self.done = 0
        self.own = {id(self.things), id(self.parents), id(self.edges)}
        self.program_modules = {}

    def is_late(self, seconds):
        return time.monotonic() - self.begun > seconds

    def mro(self, kind):
        if kind not in self.mros:
            self.mros[kind] = mro_of(kind)
        return self.mros[kind]

    # Forward, from what the program can reach.

    def visit(self, thing, parent, edge):
        if id(thing) in self.index_of or not gc.is_tracked(thing) or type(thing) in SKIPPED:
            return
        self.add(thing, parent, edge)

    def add(self, thing, parent, edge):
        self.index_of[id(thing)] = len(self.things)
        self.things.append(thing)
        self.parents.append(parent)
        self.edges.append(edge)

    def add_roots(self):
        import torch

        packages = torch.__file__.rsplit("/", 2)[0] + "/"
        for name, module in list(sys.modules.items()):
            if type(module) is not types.ModuleType:
                continue
            variables = module_dict_of(module)
            file = variables.get("__file__")
            is_own = type(file) is str and is_of_program(file) and not file.startswith(packages)
            if is_own or name == "__main__":
                self.program_modules[name] = variables
        for name in sorted(self.program_modules, key=lambda name: name != "__main__"):
            prefix = "" if name == "__main__" else name + "."
            for variable, value in list(self.program_modules[name].items()):
                self.visit(value, None, Edge("root", prefix + variable))
        for variable, place, value in self.running_locals():
            self.visit(value, None, Edge("root", variable, context=place))
        last = sys.__dict__.get("last_exc", sys.__dict__.get("last_value"))
        self.visit(last, None, Edge("root", UNCAUGHT))

    def running_locals(self):
        for frame in sys._current_frames().values():
            while frame is not None:
                if frame.f_code.co_filename != "<memledger>" and frame.f_code.co_flags & 1:
                    place = place_of(frame)
                    for name, value in locals_of(frame):
                        yield name, place, value
                frame = frame.f_back

    def forward(self, seconds):
        while self.done < len(self.things):
            if self.done % 64 == 0 and self.is_late(seconds):
                return
            i, self.done = self.done, self.done + 1
            try:
                self.expand(i, self.things[i], type(self.things[i]))
            except Exception:
                pass  # it changes meanwhile, or is odd

    def expand(self, i, thing, kind):
        if kind not in self.kinds:
            self.kinds[kind] = self.way_into(self.mro(kind))
        self.kinds[kind](i, thing, kind)

    def way_into(self, mro):
        for kinds, way in (
            ((self.Tensor,), self.into_tensor),
            ((self.Function,), self.into_function_of_graph),
            ((dict,), self.into_dict),
            ((list, tuple), self.into_sequence),
            ((types.FunctionType,), self.into_function),
            ((types.TracebackType,), self.into_traceback),
            ((type,), self.into_class),
        ):
            if any(one in mro for one in kinds):
                return way
        return self.into_object

    def into_object(self, i, thing, kind):
        for child in gc.get_referents(thing)[:MOST_ITEMS]:
            if child is not kind:
                self.visit(child, i, None)

    def into_dict(self, i, thing, kind):
        for key, value in itertools.islice(dict.items(thing), MOST_ITEMS):
            self.visit(value, i, key)
            self.visit(key, i, None)
        self.into_attributes(i, thing, kind, dict)

    def into_sequence(self, i, thing, kind):
        of = list if list in self.mro(kind) else tuple
        for n, one in enumerate(of.__getitem__(thing, slice(MOST_ITEMS))):
            self.visit(one, i, n)
        self.into_attributes(i, thing, kind, of)

    def into_attributes(self, i, thing, kind, of):
        if kind is not of:
            attributes = self.attributes_of(thing)
            if attributes is not None:
                self.visit(attributes, i, None)

    def into_function(self, i, thing, kind):
        for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or ()):
            try:
                self.visit(cell.cell_contents, i, Edge("closure", name))
            except ValueError:
                pass  # empty
        for value in (thing.__defaults__ or ()) + tuple((thing.__kwdefaults__ or {}).values()):
            self.visit(value, i, Edge("default"))
        self.visit(thing.__dict__, i, None)

    def into_traceback(self, i, thing, kind):
        frame = thing.tb_frame
        if frame.f_code.co_flags & 1:
            place = place_of(frame, thing.tb_lineno)
            for name, value in locals_of(frame):
                self.visit(value, i, Edge("traceback", name, context=place))
        self.visit(thing.tb_next, i, Edge("next"))

    def into_class(self, i, thing, kind):
        attributes = class_dict_of(thing)
        if attributes.get("__module__") in self.program_modules:
            for name, value in list(attributes.items()):
                self.visit(value, i, Edge("attribute", name))

    def into_tensor(self, i, thing, kind):
        storage = self.books.look_at(self.address_of(thing), i)
        if storage:
            self.found.setdefault(storage, i)
        if self.requires_of(thing):
            self.into_graph(i, self.node_of(thing))
            # Where nobody may be writing it.
            if self.is_alone and self.is_leaf_of(thing):
                self.visit(self.gradient_of(thing), i, Edge("attribute", "grad"))
        self.into_object(i, thing, kind)

    def into_graph(self, i, node):
        """Leaves, and functions written in Python, whose ctx may hold anything."""
        stack = [node]
        while stack and len(self.nodes) < MOST_NODES:
            node = stack.pop()
            if node is None or id(node) in self.nodes:
                continue
            self.nodes[id(node)] = node
            is_python = self.Function in self.mro(type(node))
            if is_python:
                self.visit(node, i, Edge("graph", type(node).__name__))
            elif type(node).__name__ == "AccumulateGrad":
                self.visit(node.variable, i, Edge("leaf"))
            stack.extend(self.following(node))

    def into_function_of_graph(self, i, thing, kind):
        self.into_object(i, thing, kind)
        try:
            saved = self.saved_of(thing)
        except RuntimeError:
            return  # freed by backward
        for one in saved or ():
            # What a hook has packed is not opened. Before torch 2.8 it does not say.
            if getattr(one, "unpack_hook", one) is None:
                self.visit(one.data, i, Edge("saved"))

    # The words of a path.

    def attributes_of(self, thing):
        """An object's __dict__, or None. Never a property of that name."""
        for base in self.mro(type(thing)):
            slot = class_dict_of(base).get("__dict__")
            if slot is not None:
                return slot.__get__(thing) if type(slot) is types.GetSetDescriptorType else None
        return None

    def attribute_name(self, parent, child):
        attributes = self.attributes_of(parent)
        for name, value in list((attributes or {}).items()):
            if value is child:
                return name
        for base in self.mro(type(parent)):
            for name, slot in list(class_dict_of(base).items()):
                if type(slot) is types.MemberDescriptorType:
                    try:
                        if slot.__get__(parent) is child:
                            return name
                    except AttributeError:
                        pass  # not set
        return None

    def local_name(self, parent, child):
        of_frame, what = GENERATORS[type(parent)]
        frame = getattr(parent, of_frame)
        for name, value in locals_of(frame) if frame is not None else ():
            if value is child:
                return name, place_of(frame), what
        return None, "", what

    def key_of(self, parent, child):
        """Returns where a container has it: a key, an index, or None."""
        mro = self.mro(type(parent))
        if dict in mro:
            pairs = list(dict.items(parent))
        elif list in mro or tuple in mro:
            of = list if list in mro else tuple
            pairs = enumerate(of.__getitem__(parent, slice(MOST_ITEMS)))
        elif type(parent).__name__ == "deque":
            pairs = enumerate(list(parent))
        else:
            return None
        for key, value in pairs:
            if value is child:
                return key
        return None

    def step(self, words, grandparent, parent, child, edge):
        """Takes the words of the parent to those of the child."""
        if isinstance(edge, Edge):
            return self.named_step(words, edge)
        mro = self.mro(type(parent))
        if type(child) is types.TracebackType and BaseException in mro:
            return words
        if type(parent) in (types.CellType, types.MethodType):
            return words
        key = self.key_of(parent, child) if edge is None else edge
        if dict in mro and key is not None:
            if grandparent is not None and self.is_attributes(grandparent, parent):
                return words.with_text("%s.%s" % (words.text, key))
            key = repr(key) if type(key) in (str, int) else "…"
            return words.with_text("%s[%s]" % (words.text, key))
        if type(key) is int:
            return words.with_text("%s[%d]" % (words.text, key))
        if type(parent) in GENERATORS:
            name, place, what = self.local_name(parent, child)
            if name is not None:
                return Words(name, "%s, kept by the %s %s" % (place, what, words), words.kind)
        if type(child) is dict and self.is_attributes(parent, child):
            return words
        if type(parent) in (set, frozenset):
            return words.with_text(words.text + "{…}")
        name = self.attribute_name(parent, child)
        return words.with_text("%s.%s" % (words.text, "…" if name is None else name))

    def named_step(self, words, edge):
        if edge.kind == "graph":
            return words.of_graph("ctx", " of %s in the graph of %s" % (edge.text, words))
        if edge.kind == "leaf":
            return words.of_graph("AccumulateGrad.variable", " in the graph of %s" % words)
        if edge.kind == "saved":
            of = words.context.replace(" of ", "", 1)
            return Words("a saved tensor of " + of, "", words.kind, words.about)
        if edge.kind == "closure":
            return Words(edge.text, " in the closure of %s" % words, words.kind)
        if edge.kind == "default":
            return Words("a default argument", " of %s" % words, words.kind)
        if edge.kind == "traceback":
            if words.kind == EXCEPTION or words.about == UNCAUGHT:
                context = edge.context + ", kept by " + words.about
                return Words(edge.text, context, words.kind, words.about)
            is_caught = str(words) != UNCAUGHT  # else nothing could have dropped it
            about = "the exception %s" % words if is_caught else UNCAUGHT
            context = edge.context + ", kept by " + about
            return Words(edge.text, context, EXCEPTION if is_caught else VARIABLE, about)
        return words.with_text("%s.%s" % (words.text, edge.text))

    def is_attributes(self, thing, dictionary):
        if type(thing) in (list, tuple, dict, set, frozenset):
            return False
        return type in self.mro(type(thing)) or self.attributes_of(thing) is dictionary

    def words_of(self, i):
        chain = []
        while i is not None:
            chain.append(i)
            i = self.parents[i]
        chain.reverse()
        root = self.edges[chain[0]]
        kind = CYCLE if root.kind == "cycle" else VARIABLE
        words = Words(root.text, root.context, kind, root.about)
        for n in range(1, len(chain)):
            grandparent = self.things[chain[n - 2]] if n > 1 else None
            edge = self.edges[chain[n]]
            if isinstance(edge, Edge) and edge.kind == "next":
                continue  # of a traceback
            parent, child = self.things[chain[n - 1]], self.things[chain[n]]
            words = self.step(words, grandparent, parent, child, edge)
        for table in ("_modules", "_buffers", "_parameters"):
            words.text = without_table(words.text, "." + table + "[")
        return words

    # What the program does not reach.

    def add_cycles(self, things):
        """Results that a custom function has put on its ctx. Adds them as roots."""
        ways = [one for one in things if self.Function in self.mro(type(one))]
        for ctx in ways:
            if self.is_late(SECONDS_IN_ALL):
                return
            for name, value in list((self.attributes_of(ctx) or {}).items()):
                if id(ctx) in self.index_of or self.Tensor not in self.mro(type(value)):
                    continue
                way = self.way_to(ctx, value)
                if way is not None:
                    text = "a cycle: %s -> %s%s's ctx -> %s" % (name, way, type(ctx).__name__, name)
                    about = "%s by ctx.save_for_backward(), not as ctx.%s: " % (name, name)
                    about += "that closes a cycle, which at best gc.collect() frees"
                    self.add(value, None, Edge("cycle", text, about))

    def way_to(self, ctx, tensor):
        """Returns what lies between the tensor and the ctx, None if nothing does."""
        begin = self.node_of(tensor) if self.requires_of(tensor) else None
        if begin is ctx:
            return ""
        stack, seen = [begin], {}
        while stack and len(seen) < MOST_NODES_OF_CYCLE:
            node = stack.pop()
            if node is ctx:
                return "its graph -> "
            if node is not None and id(node) not in seen:
                seen[id(node)] = node
                stack.extend(self.following(node))
        return None

    def following(self, node):
        is_python = self.Function in self.mro(type(node))
        return [one for one, _ in (self.next_of(node) if is_python else node.next_functions)]

    def add_referrers(self, things):
        """Of the largest tensors that nothing is known to hold: adds what refers to them."""
        store, targets, at = [], [], {}
        kinds = {kind for kind in set(map(type, things)) if self.Tensor in self.mro(kind)}
        for one in things:
            if type(one) not in kinds or id(one) in self.index_of:
                continue
            storage = self.books.look_at(self.address_of(one), -1)
            if storage and self.books.is_missing(storage) and len(targets) < MOST_BACKWARD:
                at[id(one)] = len(store)
                targets.append(len(store))
                store.append(one)
        modules = {
            id(module_dict_of(module)): name
            for name, module in list(sys.modules.items())
            if type(module) is types.ModuleType
        }
        own = self.own | {id(store), id(things), id(self.nodes), id(self.__dict__)}
        down = [None] * len(store)  # the one by which it was found
        frontier = list(targets)
        for _ in range(MOST_LEVELS):
            if not frontier or self.is_late(SECONDS_IN_ALL - self.level_seconds):
                return
            before = time.monotonic()
            batch = [store[i] for i in frontier]
            wanted = {id(one) for one in batch}
            referrers = gc.get_referrers(*batch)
            self.level_seconds = time.monotonic() - before
            own |= {id(batch), id(referrers)}
            frontier = []
            for one in referrers:
                if id(one) in own or id(one) in at or type(one) in SKIPPED:
                    continue
                children = [at[id(child)] for child in gc.get_referents(one) if id(child) in wanted]
                if not children:
                    continue
                at[id(one)] = len(store)
                store.append(one)
                down.append(children[0])
                root = self.root_text(one, modules)
                if root is None:
                    frontier.append(at[id(one)])
                else:
                    self.add_chain(store, down, at[id(one)], root)

    def root_text(self, thing, modules):
        if id(thing) in modules:
            return modules[id(thing)]
        if type in self.mro(type(thing)):
            return "%s.%s" % (class_dict_of(thing).get("__module__"), thing.__name__)
        return None

    def add_chain(self, store, down, i, root):
        """Adds what lies between a root and a tensor, as forward() does."""
        parent, edge, child = None, Edge("root", root), store[i]
        while True:
            if id(child) in self.index_of:
                return
            self.add(child, parent, edge)
            parent, i = self.index_of[id(child)], down[i]
            if i is None:
                return self.expand(parent, child, type(child))
            edge = None
            if self.parents[parent] is None and type(child) is dict:
                edge = Edge("attribute", str(self.key_of(child, store[i])))
            child = store[i]

    # The result.

    def tell(self):
        for storage, i in self.found.items():
            if storage in self.told or self.is_late(2 * SECONDS_IN_ALL):
                continue
            self.told.add(storage)
            try:
                words = self.words_of(i)
                text = str(words)
                about = words.about or text
                self.books.add_found(storage, words.kind, encode(text), encode(about))
            except Exception:
                pass  # one that changes meanwhile
        for n in range(self.books.find_in_graphs()):
            storage, root = self.books.saved_storage(n), self.books.saved_by(n)
            try:
                words = self.words_of(root)
                slot = self.books.saved_slot(n).decode()
                words = words.of_graph(slot, " in the graph of %s" % words)
                self.books.add_found(storage, words.kind, encode(str(words)), encode(words.about))
            except Exception:
                pass

    def run(self):
        self.add_roots()
        self.forward(SECONDS_FORWARD)
        self.tell()
        if not self.books.count_missing():
            return
        before = time.monotonic()
        things = gc.get_objects()
        self.level_seconds = 2 * (time.monotonic() - before)
        self.add_cycles(things)
        self.forward(SECONDS_IN_ALL)
        self.tell()
        if self.books.count_missing() and not self.is_late(SECONDS_IN_ALL - self.level_seconds):
            self.add_referrers(things)
            self.tell()


class Words:
    """A path: `hidden`, ` in run() (train.py:14)`."""

    def __init__(self, text, context="", kind=VARIABLE, about=""):
        self.text, self.context, self.kind, self.about = text, context, kind, about

    def __str__(self):
        return self.text + self.context

    def of_graph(self, text, context):
        """Returns those of what the graph of this one holds."""
        is_cycle = self.kind == CYCLE
        about = self.about if is_cycle else str(self)
        return Words(text, context, CYCLE if is_cycle else GRAPH, about)

    def with_text(self, text):
        return Words(text, self.context, self.kind, self.about)


def without_table(text, table):
    """Returns net.layer.out of net._modules['layer'].out."""
    while True:
        begin = text.find(table + "'")
        end = text.find("']", begin)
        if begin < 0 or end < 0:
            return text
        text = text[:begin] + "." + text[begin + len(table) + 1 : end] + text[end + 2 :]


class Holders:
    """Searches, one at a time."""

    searching = False

    def __init__(self, books):
        self.books = books
        self.look_now = self.look  # one object, which C++ calls

    def look(self, at_exit=False):
        if Holders.searching:
            return
        Holders.searching = True
        was_enabled = gc.isenabled()
        gc.disable()  # the collector would run the program's finalizers here
        try:
            import torch

            if self.books.begin_search():
                with torch._C.DisableTorchFunctionSubclass():
                    search = Search(self.books, at_exit)
                    try:
                        search.run()
                    finally:
                        search.__dict__.clear()
        except Exception:
            pass
        finally:
            self.books.end_search()
            if was_enabled:
                gc.enable()
            Holders.searching = False


#)PYTHON"
