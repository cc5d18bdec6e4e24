"""Which tensors are kept in arrays, and which are expressions, computed where they are used.

A tensor is an expression of its indices until something needs it as a whole. Operations that do are roots: stores,
products, reductions, values carried round a loop. A root becomes a loop nest, and what lies between it and its sources
(splats, ranges, broadcasts, arithmetic, loads) becomes scalar C inside that nest.

Some values between are put into arrays nevertheless, which makes them roots too:

- a product's operand from outside of its loop: computed once, not in each pass;
- a load whose memory might change before the root reads it, or that several roots read;
- an expensive value that would be computed several times: for several roots, or for each element of a broadcast.
"""

from triton_on_cpu.ttir import Block, Function, Op, Value

SHAPES = {
    "tt.splat", "tt.expand_dims", "tt.broadcast", "tt.trans", "tt.reshape", "tt.join", "tt.split", "tt.make_range"
}  # fmt: skip
EFFECTS = {"tt.store", "tt.atomic_rmw", "tt.atomic_cas", "ttg.barrier", "gpu.barrier", "tt.print", "tt.assert"}
FOLDS = {"tt.reduce", "tt.scan"}  # their regions combine two elements
ROOTS = FOLDS | EFFECTS | {
    "tt.dot", "tt.unsplat",
    "scf.yield", "scf.condition", "scf.for", "scf.while", "scf.if", "cf.br", "cf.cond_br",
}  # fmt: skip
# About the cycles of one element in vector code, where it is more than one.
COSTS = {
    "exp2": 8, "exp": 9, "log2": 9, "log": 9, "sqrt": 6, "rsqrt": 8, "divf": 5, "precise_divf": 6, "precise_sqrt": 6,
    "divsi": 3, "remsi": 3, "divui": 3, "remui": 3, "load": 8, "truncf": 2, "fp_to_fp": 6, "sin": 20, "cos": 20,
    "tanh": 20, "erf": 20,
}  # fmt: skip
DEAR = 8
AFFINE_SOURCES = ("arith.constant", "tt.make_range", "tt.splat")
AFFINE_STEPS = ("arith.addi", "arith.subi", "arith.muli", "arith.extsi", "tt.expand_dims", "tt.broadcast", "tt.trans")
POINTER_STEPS = ("tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims")


class Plan:
    """Which tensors get arrays, decided from the kernel's end to its beginning."""

    def __init__(self, function: Function, checked: bool) -> None:
        self.checked = checked
        self.arguments = {argument: i for i, argument in enumerate(function.arguments)}
        self.in_array: set[Value] = set()
        self.starts: dict[Value, Value] = {}  # what a loop's argument, or result, starts with
        self._roots: dict[Value, tuple[set[Op], bool]] = {}
        self._costs: dict[Value, int] = {}
        self._affine: dict[Value, bool] = {}
        for block in function.blocks:
            self._note_loops(block)
        for block in reversed(function.blocks):
            self._plan_block(block)

    def argument_of(self, pointer: Value) -> int:
        """The index of the kernel's argument that a pointer comes from; -1 if it cannot be told."""
        for _ in range(100):
            if pointer in self.arguments:
                return self.arguments[pointer]
            if pointer in self.starts:
                pointer = self.starts[pointer]
            elif pointer.op.name in SHAPES or pointer.op.name in ("tt.addptr", "tt.bitcast"):
                pointer = pointer.op.operands[0]
            else:
                break
        return -1

    def _note_loops(self, block: Block) -> None:
        for op in block.ops:
            if op.name == "scf.for":
                for initial, argument, result in zip(
                    op.operands[3:], op.regions[0].arguments[1:], op.results, strict=True
                ):
                    self.starts[argument] = self.starts[result] = initial
            for region in op.regions:
                self._note_loops(region)

    def _plan_block(self, block: Block) -> None:
        for op in reversed(block.ops):
            if op.name not in FOLDS:
                for region in reversed(op.regions):
                    self._plan_block(region)
            for value in op.results:
                if value.type.shape:
                    self._plan_value(op, value)

    def _plan_value(self, op: Op, value: Value) -> None:
        roots: set[Op] = set()
        grows = False
        for user in value.uses:
            found, more = self._roots_through(user, value)
            roots |= found
            grows |= more
        self._roots[value] = roots, grows
        if op.name not in ROOTS and self._needs_array(op, value, roots, grows):
            self.in_array.add(value)

    def _roots_through(self, user: Op, value: Value) -> tuple[set[Op], bool]:
        """The roots that a value reaches through a user, and whether a broadcast on the way repeats it."""
        if user.name in ROOTS or not user.results or not user.result.type.shape:
            return {user}, False
        roots: set[Op] = set()
        grows = user.name == "tt.broadcast" and user.result.type.numel > value.type.numel
        for result in user.results:
            if result in self.in_array:
                roots.add(user)
            else:
                found, more = self._roots.get(result, (set(), False))
                roots |= found
                grows |= more
        return roots, grows

    def _needs_array(self, op: Op, value: Value, roots: set[Op], grows: bool) -> bool:
        if op.name == "arith.constant":
            return False
        if any(user.name == "tt.dot" and user.block is not op.block for user in value.uses):
            return True
        if op.name == "tt.load":
            return not self._may_wait(op, roots, grows)
        if op.name in SHAPES or value.type.is_pointer or self.is_affine(value):
            return False
        is_repeated = len(roots) > 1 or grows or any(root.block is not op.block for root in roots)
        return is_repeated and self.cost(value) >= DEAR

    def cost(self, value: Value) -> int:
        """The cost of one element that is computed where it is used."""
        if value not in self._costs:
            op = value.op
            if not op.name or not value.type.shape or op.name in ROOTS:
                return 0
            own = 0 if op.name in SHAPES or op.name == "arith.constant" else COSTS.get(op.name.split(".")[1], 1)
            self._costs[value] = own + sum(self.cost(x) for x in op.operands)
        return self._costs[value]

    def _may_wait(self, op: Op, roots: set[Op], grows: bool) -> bool:
        """Whether a load may be done where its value is used: by one root, before which nothing is written.

        A checked kernel makes each access where it stands, used or not. A store may read
        an element just before it writes the element at the same place, but no other: two arguments may be one tensor.
        (If they overlap and begin at different places, that is not noticed.)
        """
        if self.checked or len(roots) != 1 or grows:
            return False
        root = next(iter(roots))
        takes_it_whole = root.name in ("tt.dot", "tt.scan") or (root.regions and root.name not in FOLDS)
        is_multiplied = root.name == "tt.dot" and len(op.operands) == 1
        if is_multiplied:  # as it lies in memory, see products.py
            takes_it_whole = self.source_of_product(root.operands[1]) is not op.result
        if takes_it_whole or root.block is not op.block:
            return False
        ops = op.block.ops
        between = ops[ops.index(op) + 1 : ops.index(root)]
        if any(other.name in EFFECTS or (other.regions and other.name not in FOLDS) for other in between):
            return False
        return root.name not in EFFECTS or (
            root.name == "tt.store" and self._have_same_places(op.operands[0], root.operands[0])
        )

    def source_of_product(self, value: Value) -> Value:
        """The tensor whose elements a product's operand has, in whatever order."""
        while value.op.name in ("tt.trans", "tt.reshape"):
            value = value.op.operands[0]
        return value

    def _have_same_places(self, a: Value, b: Value) -> bool:
        """Whether two tensors of pointers, perhaps into different arguments, have the same offsets."""
        a, b = bases(a, b)
        return a is b or (a in self.arguments and b in self.arguments)

    def is_affine(self, value: Value) -> bool:
        """Sums and products of ranges and scalars: cheaper to compute than to load."""
        if value not in self._affine:
            op = value.op
            is_step = op.name in AFFINE_STEPS and all(self.is_affine(x) for x in op.operands)
            self._affine[value] = not value.type.shape or op.name in AFFINE_SOURCES or is_step
        return self._affine[value]


def bases(a: Value, b: Value) -> tuple[Value, Value]:
    """The pointers that two tensors of pointers begin with, below the offsets that are added to both of them."""
    while a is not b and a.op.name == b.op.name and a.op.name in POINTER_STEPS:
        if a.op.operands[1:] != b.op.operands[1:] or a.op.integer("axis") != b.op.integer("axis"):
            break
        a, b = a.op.operands[0], b.op.operands[0]
    return a, b
