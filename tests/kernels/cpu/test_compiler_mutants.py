"""Planted bugs in the compiler and in its C headers, each of which a test must notice."""

from pathlib import Path

import pytest
import torch

from tests.kernels.cpu import test_control as control
from tests.kernels.cpu import test_elements as elements
from tests.kernels.cpu import test_memory as memory
from tests.kernels.cpu import test_products as products
from tests.kernels.cpu import test_reductions as reductions
from tests.kernels.cpu import test_ttir as ttir
from tests.kernels.cpu.harness import HeaderMutant, in_child, is_original, optimised, planted
from tests.mutation import KillTable, Mutant

# (name, old, new, check, its arguments)
MUTANTS = {
    "ttir": [
        ("callers' places", "answer = next((place for place in known if place[1])", "answer = next((place for place in [*known][::-1] if place[1])", ttir.test_places),
        ("one result of many", "return found if isinstance(found, Value) else found[int(index or 0)]", "return found if isinstance(found, Value) else found[0]", control.test_carried_tensors_change_places, 7, False),
        ("a comparison has its operands' type", 'kinds = [Type(kinds[0].shape, "i1")]', "kinds = kinds[:1]", elements.test_comparisons, "f32"),
        ("constants are integers", 'if op.name == "arith.constant" and not op.types:', 'if op.name == "arith.nothing":', ttir.test_places),
    ],
    "nest": [
        ("groups of a reshape upside down", "answer += _split(before[start:j], flat)", "answer += _split(before[start:j], flat)[::-1]", ttir.test_reshaped, (4, 4, 2), (8, 4)),
        ("columns first", "math.prod(shape[d + 1 :])) for d, index", "math.prod(shape[:d])) for d, index", reductions.test_shapes, False),
        ("constants lost", 'linear = {"": constant}', 'linear = {"": 0}', elements.test_constants),
    ],
    "plan": [
        ("loads wait behind stores", "if any(other.name in EFFECTS or", "if any(", memory.test_moves, "read before a store, used after it", False),
        ("shifted in place", "if a.op.name == \"tt.addptr\" and a.op.operands[1] is not b.op.operands[1]:", "if False:", memory.test_one_tensor_for_two_arguments, False),
        ("checked loads wait", "if self.checked or len(roots) != 1 or grows:", "if len(roots) != 1 or grows:", memory.test_faults, "what is not used"),
        ("starts of loops unknown", "self.starts[argument] = self.starts[result] = initial", "pass", memory.test_faults, "pointers that a loop moves"),
    ],
    "kernel": [
        ("a new dimension is the first", "for d, index in enumerate(indices) if d != op.integer(\"axis\")]", "for d, index in enumerate(indices) if d != 0]", memory.test_tiles, "contiguous rows", 5, 31, False),
        ("split takes the first", "constant_index(value.index)", "constant_index(0)", reductions.test_shapes, False),
        ("ranges begin with 0", 'op.integer("start")).text', '0).text', elements.test_constants),
        ("moving pointers stand still", "terms.append(Affine({}, moved, 0))", "pass", products.test_matmul, 33, 70, 40, False),
        ("differences are sums", 'sign = "1" if name == "arith.addi" else "-1"', 'sign = "1"', memory.test_moves, "backwards", False),
        ("one loop's step is another's", "nest.variables[nest.factored - 1 :]}", "nest.variables[nest.depth - 1 :]}", products.test_what_is_not_copied, memory.BF16, 2, "of_pairs"),
    ],
    "elements": [
        ("sums are differences", '"addi": "+", "subi"', '"addi": "-", "subi"', elements.test_integers_wrap_around, "i8"),
        ("shifts wrap around", '({by} & {kind.bits - 1})) : 0)"', '({by} & {kind.bits - 1})) : {x[0]})"', elements.test_shifts_by_any_number, "i32"),
        ("comparisons are signed", "cast = f\"({kind.value if predicate.startswith('s') else kind.unsigned})\"", 'cast = ""', elements.test_comparisons, "u32"),
        ("truth values are not made 0 or 1", "return f\"({self.load}({text}))\" if self.load else text", "return text", memory.test_masked_copy, memory.BF16, False),
        ("bf16 is not rounded", '"bf16_of_f32", "round_bf16")', '"bf16_of_f32", "")', elements.test_floats_are_rounded_once, "bf16"),
        ("large unsigned becomes negative", "cast = f\"({source.unsigned})\" if name == \"uitofp\"", 'cast = "" if name == "uitofp"', elements.test_conversions, "u32", "f32"),
        ("doubles skip a rounding", "return f\"{KINDS[target].round}((float)({text}))\"", "return text", elements.test_conversions, "f64", "bf16"),
        ("bits are values", 'f"bits_of_{source}({x[0]})"', 'f"({b.value})({x[0]})"', elements.test_bits_keep_their_meaning, "f32", "i32"),
    ],
    "memory": [
        ("rows without conditions", "    for text, level in mask.rows:\n", "    for text, level in []:\n", memory.test_tiles, "contiguous rows", 5, 31, True),
        ("lower bounds ignored", "lines += [f\"{low} = MAX(", "[f\"{low} = MAX(", memory.test_masked_copy, memory.FP32, True),
        ("less is less or equal", "' + 1' if predicate in ('sle', 'sgt') else ''", "' + 1' if predicate in ('slt', 'sgt') else ''", memory.test_every_way_to_write_a_bound, 5, False),
        ("each element's condition lost", "    needed = mask.elements\n", "    needed = []\n", memory.test_every_way_to_write_a_bound, 5, False),
        ("guards come late", "            nest.guard(text)\n", "            nest.lines[-1].append(f'if (!{text}) continue;')\n", memory.test_masks_of_the_places_that_are_written),
        ("stores of rows are not checked", "            check_row(kernel, nest, address, check, num_bytes)\n", "            pass\n", memory.test_a_write_too_far_is_not_made),
        ("atomics are not checked", "        needed = [*needed, check_element(address, check, KINDS[pointer.type.pointee].num_bytes)]", "        pass", memory.test_faults, "an atomic"),
        ("atomics ignore their mask", "    condition = \" && \".join(needed) or \"1\"", "    condition = \"1\"", memory.test_atomics, False),
        ("what is unread is 0", 'return "NAN" if kernel.checked and', 'return "0" if kernel.checked and', memory.test_what_was_not_read_is_not_a_number),
    ],
    "products": [
        ("transposition forgotten", 'return f"{function}_transposed", _op', 'return function, _op', reductions.test_attention, 50, False),
        ("accumulator forgotten", "    kernel.fill(name, start)\n", "    kernel.out.append(f'memset({name}, 0, sizeof {name});')\n", reductions.test_attention, 50, False),
        ("an accumulator that is read", "start.uses == [op] and", "", products.test_accumulators_change_places, 3),
        ("pairs as far apart as numbers", 'f"({stride}) / 2"', 'f"({stride})"', products.test_as_it_lies, "bf16", 4, 2, False),
        ("narrow matrices", 'if function == "product" and n % VECTOR:', 'if function == "product" and n % 8:', products.test_product, (4, 8, 16), False),
        ("reshaped outside in", "            own.insert(0, (taken, step))", "            own.append((taken, step))", products.test_what_is_not_copied, memory.BF16, 2, "of_pairs"),
        ("fp8 codes are numbers", "{wide}[i] = {widen}({name}[i]);", "{wide}[i] = {name}[i];", products.test_product_of_narrow_types, "e4m3"),
    ],
    "reductions": [
        ("maxima of negative numbers", '"maxnumf": ("-INFINITY"', '"maxnumf": ("0"', reductions.test_extremes_step_over_nan),
        ("NaN is a number", '"{note} ? {total} : NAN")', '"{total}")', reductions.test_extremes_step_over_nan),
        ("products begin with 0", '"mulf": ("1"', '"mulf": ("0"', reductions.test_extremes_that_keep_nan_and_products),
        ("the first element twice", 'nest.add(f"if ({counter} == 0) {{ {first} }} else {{ {later} }}")', 'nest.add(f"if ({counter} == 0) {{ {first} }} {later}")', reductions.test_scans, torch.int32),
    ],
    "control": [
        ("one value after the other", "            if not is_first and len(pairs) > 1:", "            if False:", control.test_scalars_change_places, 1),
        ("arrays are overwritten early", "if is_first or _may_overwrite(kernel, target, value, pairs):", "if True:", control.test_carried_tensors_change_places, 7, False),
        ("counters of 32 bits", 'f"for (int64_t {i} =', 'f"for (int32_t {i} =', control.test_counters, control.LIMIT - 10, control.LIMIT, 7),
        ("steps of a moving tensor", 'if step.op.name == "tt.splat" or is_number:', "if True:", control.test_a_tensor_that_moves_by_a_tensor),
        ("returns return nothing", '    kernel.out.append("return;")', "    pass", control.test_early_return, False),
    ],
    "numbers.h": [
        ("bf16 rounds half up", "(u + 0x7fffu + (u >> 16 & 1u))", "(u + 0x8000u)", elements.test_conversions, "f32", "bf16"),
        ("fp16 truncates", "0xfffu + (m >> 13 & 1u)", "0u", elements.test_conversions, "f32", "f16"),
        ("infinite fp16 wraps around", "h = m >= 0x477ff000u ? 0x7c00u : h;", "", elements.test_conversions, "f32", "f16"),
        ("fp8 does not saturate", "c = c > 0x7eu ? 0x7eu : c;", "", elements.test_conversions, "f32", "e4m3"),
        ("integers wrap around", "x >= 0x1p31 ? INT32_MAX : x <= -0x1p31 ? INT32_MIN : (int32_t)x", "(int32_t)(int64_t)x", elements.test_conversions, "f32", "i32"),
        ("NaN wins a minimum", "F minnumf##suffix(F a, F b) { return a < b ? a : b == b ? b : a; }", "F minnumf##suffix(F a, F b) { return a < b ? a : b; }", elements.test_floats_are_rounded_once, "f32"),
        ("division by zero traps", "T divsi_##N(T a, T b) { return b == 0 ? -1 :", "T divsi_##N(T a, T b) { return", elements.test_division_by_zero_does_not_trap, "i32"),
        ("no subnormal exponentials", "y = x < -150.0f ? 0.0f : y", "y = x < -126.0f ? 0.0f : y", elements.test_functions, "f32", 4e-7),
    ],
    "products.h": [
        ("single vectors", "BLOCK(2, 4, STEP, AHEAD) BLOCK(2, 1, STEP, AHEAD)", "BLOCK(2, 4, STEP, AHEAD)", products.test_product, (2, 16, 16), False),
        ("the first rows only", "m < M; m += MIN(M, BLOCK_ROWS)", "m < MIN(M, BLOCK_ROWS); m += MIN(M, BLOCK_ROWS)", products.test_product, (64, 16, 32), False),
        ("halves swapped", "even[n] | (uint32_t)odd[n] << 16", "odd[n] | (uint32_t)even[n] << 16", products.test_product_of_bf16, (2, 16, 16), False),
        ("sums in the wrong lanes", "FOLD(8) FOLD(4) FOLD(2) FOLD(1)", "FOLD(8) FOLD(4) FOLD(1) FOLD(2)", products.test_product, (4, 64, 32), True),
        ("the first pairs of tiles only", "for (int k = 0; k < K; k += 32) {\n      for (int i", "for (int k = 0; k < 32; k += 32) {\n      for (int i", products.test_product_of_bf16, (16, 32, 64), False),
    ],
    "access.h": [
        ("one element past the end", "address - l->extents[i].base <= l->extents[i].bytes - bytes", "address - l->extents[i].base <= l->extents[i].bytes", memory.test_a_read_too_far, memory.FP32),
        ("the row's end is not looked at", "is_inside(l, argument, (uint64_t)(p) + ((int64_t)(high) - 1) * (step) * (bytes), bytes)) ||", "1) ||", memory.test_a_read_too_far, memory.FP32),
        ("atomics read and write", "} while (!__atomic_compare_exchange_n((U*)p, &was, next, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)); \\", "*(U*)p = next + 1; } while (0); \\", memory.test_atomics, False),
        ("swaps return the new value", "    return expected;", "    return v;", memory.test_compare_and_swap),
    ],
}  # fmt: skip
ROWS = [(module, *row) for module, rows in MUTANTS.items() for row in rows]


@pytest.mark.mutants
@pytest.mark.parametrize("row", ROWS, ids=[f"{row[0]}: {row[1]}" for row in ROWS])
def test_mutant(row):
    module, name, old, new, test, *arguments = row
    if "tiles" in name and "amx_bf16" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no AMX")
    kind = HeaderMutant if module.endswith(".h") else Mutant
    mutant = kind(name, module if module.endswith(".h") else f"triton_on_cpu.{module}", old, new)

    def check(changed):
        with planted(changed), optimised("-O1"):
            if is_original(changed):
                test(*arguments)
            else:
                in_child(lambda: test(*arguments))

    KillTable.record(mutant, check)
