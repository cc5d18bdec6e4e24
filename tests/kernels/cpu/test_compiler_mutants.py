"""Planted bugs in the compiler and in its C headers, each of which a test must notice."""

from pathlib import Path

import pytest
import torch

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
        ("negative attributes", r'= (-?\d+|true|false)', r'= (\d+|true|false)', ttir.test_attributes),
        ("strings are read", "re.sub(r'\"(?:[^\"\\\\]|\\\\.)*\"', '\"\"', text)", "text", ttir.test_attributes),
    ],
    "nest": [
        ("remainder forgotten", 'f"({divided} % {size})"', 'f"({divided})"', ttir.test_reshaped, (4, 4, 2), (8, 4)),
        ("dimensions of two are no loops", "if size > 1 and d != inner]", "if size > 2 and d != inner]", products.test_product, (2, 16, 16), False),
    ],
    "plan": [
        ("loads wait behind stores", "if any(other.name in EFFECTS or", "if any(", memory.test_cases, "read before a store, used after it", False),
        ("shifted in place", "if a.op.operands[1:] != b.op.operands[1:] or", "if", memory.test_cases, "one tensor for two arguments", False),
        ("two arguments never meet", "root.name == \"tt.store\" and self._have_same_places(op.operands[0], root.operands[0])", "root.name == \"tt.store\"", memory.test_cases, "one tensor for two arguments", False),
        ("checked loads wait", "if self.checked or len(roots) != 1 or grows:", "if len(roots) != 1 or grows:", memory.test_faults, "what is not used"),
        ("starts of loops unknown", "self.starts[argument] = self.starts[result] = initial", "pass", memory.test_faults, "pointers that a loop moves"),
    ],
    "kernel": [
        ("levels too low", 'if value.op.name in ("tt.make_range", "tt.join"):', 'if value.op.name in ("tt.join",):', elements.test_truth_values),
    ],
    "addresses": [
        ("one loop's step is another's", "nest.variables[nest.factored - 1 :]}", "nest.variables[nest.depth - 1 :]}", products.test_what_is_not_copied, memory.BF16, 2, "of_pairs"),
        ("pieces of an address lost", "    if outer:\n", "    if outer and not inner:\n", memory.test_cases, "gathered rows", False),
    ],
    "elements": [
        ("unsigned division is signed", 'number = kind.unsigned if name.endswith("ui") else kind.value', "number = kind.value", elements.test_integers, "u32"),
        ("shifts wrap around", '({by} & {kind.bits - 1})) : 0)"', '({by} & {kind.bits - 1})) : {x[0]})"', elements.test_integers, "i32"),
        ("far shr gives 0", ": {kind.bits - 1}))\"", ": 0))\"", elements.test_integers, "i8"),
        ("comparisons are signed", "cast = f\"({kind.value if predicate.startswith('s') else kind.unsigned})\"", 'cast = ""', elements.test_comparisons, "u32"),
        ("unordered is ordered", '"une": "{a} != {b}"', '"une": "({a} < {b}) | ({a} > {b})"', elements.test_comparisons, "f32"),
        ("truth values are not made 0 or 1", "return f\"({self.load}({text}))\" if self.load else text", "return text", memory.test_masked_copy, memory.BF16, False),
        ("bf16 is not rounded", '"bf16_of_f32", "round_bf16")', '"bf16_of_f32", "")', elements.test_floats_are_rounded_once, "bf16"),
        ("large unsigned becomes negative", '"arith.uitofp": "({T}){u}{0}"', '"arith.uitofp": "({T}){0}"', elements.test_conversions, "u32", "f32"),
        ("all floats become int32", "{max(32, kind.bits)}_of_", "32_of_", elements.test_conversions, "f64", "i64"),
        ("doubles skip a rounding", "return f\"{KINDS[target].round}((float)({text}))\"", "return text", elements.test_conversions, "f64", "bf16"),
    ],
    "memory": [
        ("less is less or equal", "' + 1' if predicate in ('sle', 'sgt') else ''", "' + 1' if predicate in ('slt', 'sgt') else ''", memory.test_every_way_to_write_a_bound, 5, False),
        ("bounds too wide always hold", "number >= nest.size if is_high else number <= 0", "number >= nest.size - 1 if is_high else number <= 0", memory.test_cases, "known bounds", False),
        ("other is left out below", "            if mask.lows or kernel.checked or low != \"0\":", "            if low != \"0\":", memory.test_masked_copy, memory.FP32, True),
        ("each element's condition lost", "address, mask.elements, by_row=True)", "address, [], by_row=True)", memory.test_every_way_to_write_a_bound, 5, False),
        ("elements' conditions hold already", "            found.elements.append(kernel.element(nest, value, at))\n            continue\n", "            found.elements.append(kernel.element(nest, value, at))\n", memory.test_masks_of_the_places_that_are_written),
        ("guards come late", "            nest.guard(text)\n", "            nest.lines[-1].append(f'if (!{text}) continue;')\n", memory.test_masks_of_the_places_that_are_written),
        ("gathers ignore their mask", "    of_mask = conditions(kernel, nest, rest[0]", "    of_mask = conditions(kernel, nest, None and rest[0]", memory.test_masks_that_depend_on_data, False),
        ("rows are not checked", "        nest.lines[nest.row_level].append(f\"if ({nest.high} > {nest.low} && !{row}) {nest.high} = {nest.low};\")\n", "", memory.test_a_read_too_far, memory.FP32),
        ("bad rows are written", "        nest.lines[nest.row_level].append(f\"if ({nest.high} > {nest.low} && !{row}) {nest.high} = {nest.low};\")\n", "        nest.lines[nest.row_level].append(f\"(void){row};\")\n", memory.test_a_write_too_far_is_not_made),
        ("elements are not checked", "    return [*needed, f\"WITHIN(", "    return needed or [f\"(1 || ", memory.test_faults, "a scalar"),
        ("gathered elements are not checked", "    if needed := verified(kernel, nest, op, address, [], by_row=True):", "    if False:", memory.test_faults, "an index too large"),
        ("atomics are not checked", "    needed = verified(kernel, nest, op, address, needed)\n", "", memory.test_faults, "an atomic"),
        ("fault of another argument", 'argument, num_bytes = kernel.plan.argument_of(pointer), ', 'argument, num_bytes = 0, ', memory.test_a_write_too_far_is_not_made),
        ("what is unread is 0", 'return "NAN" if kernel.checked and', 'return "0" if kernel.checked and', memory.test_what_was_not_read_is_not_a_number),
    ],
    "products": [
        ("another's accumulator", "if is_carried:", "if start in kernel.array and start in block.arguments:", products.test_accumulators_change_places, 3),
        ("an accumulator that is read", "start.uses == [op] and", "", products.test_accumulators_change_places, 3),
        ("pairs are rows", 'case "bf16", [(_, stride), (2, 1)], [(_, 2)]:', 'case "bf16", [(_, stride), (_, 1)], [(_, 4)]:', products.test_as_it_lies, "bf16", 4, 4, False),
        ("narrow matrices", 'if function == "product" and n % VECTOR:', 'if function == "product" and n % 8:', products.test_product, (16, 8, 16), False),
        ("reshaped outside in", "            own.insert(0, (taken, step))", "            own.append((taken, step))", products.test_what_is_not_copied, memory.BF16, 2, "of_pairs"),
        ("rows go on", " and answer[-1][1] == count * step:", ":", products.test_as_it_lies, "f32", 4, 2, False),
    ],
    "reductions": [
        ("maxima of negative numbers", '"maxnumf": ("-INFINITY"', '"maxnumf": ("0"', reductions.test_extremes_step_over_nan),
        ("NaN is a number", '"{note} ? {total} : NAN")', '"{total}")', reductions.test_extremes_step_over_nan),
        ("NaN is stepped over", '"{note} ? NAN : {total}")', '"{total}")', reductions.test_extremes_that_keep_nan_and_products),
        ("columns of NaN", '"NAN" if name[3:] == "numf" else start', "start", reductions.test_extremes_step_over_nan),
        ("limits of another width", 'f"INT{bits}_MIN"', '"0"', reductions.test_sum_max_min, "i32"),
        ("fp16 totals are not rounded", 'return f"{KINDS[element].round}({text})"', "return text", reductions.test_totals_of_fp16_are_rounded),
        ("the first element twice", 'nest.add(f"if ({counter} == 0) {{ {first} }} else {{ {later} }}")', 'nest.add(f"if ({counter} == 0) {{ {first} }} {later}")', reductions.test_scans, torch.int32),
    ],
    "control": [
        ("one value after the other", "            if not is_first and len(pairs) > 1:", "            if False:", memory.test_cases, "scalars change places", False),
        ("arrays are overwritten early", "if is_first or _may_overwrite(kernel, target, value, pairs):", "if True:", memory.test_cases, "carried tensors change places 7 times", False),
        ("neighbours are overwritten", "keeps = value.op.name not in SHAPES", "keeps = value.op.name not in ()", memory.test_cases, "arranged anew at each turn", False),
        ("counters of 32 bits", 'f"for (int64_t {i} =', 'f"for (int32_t {i} =', memory.test_counters, memory.LIMIT - 10, memory.LIMIT, 7),
        ("no poll in loops", "    if kernel.checked:\n        kernel.out.append", "    if False:\n        kernel.out.append", memory.test_an_endless_loop_ends_when_it_is_told),
        ("steps of a moving tensor", 'if step.op.name == "tt.splat" or is_number:', "if True:", memory.test_cases, "moved by a tensor", False),
    ],
    "generate": [
        ("planes forgotten", "p / l->grid[0] / l->grid[1]}}", "p / l->grid[0] % l->grid[1]}}", elements.test_program_ids_run_over_the_grid_x_first),
        ("assertions in unchecked kernels", "    if not kernel.checked:\n        return\n", "", memory.test_assertions),
        ("stopped launches go on", "p < last && !STOPPED;", "p < last;", memory.test_the_first_fault_ends_the_launch),
    ],
    "numbers.h": [
        ("bf16 rounds half up", "(u + 0x7fffu + (u >> 16 & 1u))", "(u + 0x8000u)", elements.test_conversions, "f32", "bf16"),
        ("NaN becomes infinite in bf16", "FLOAT(x != x ? 0x7fc00000u : rounded)", "FLOAT(rounded)", elements.test_conversions, "f32", "bf16"),
        ("no subnormal fp16", "m < 0x38800000u ? small : normal", "m < 0x38800000u ? 0u : normal", elements.test_conversions, "f32", "f16"),
        ("infinite fp16 wraps around", "h = m >= 0x477ff000u ? 0x7c00u : h;", "", elements.test_conversions, "f32", "f16"),
        ("infinite fp16 is 65536", "(h & 0x7c00) == 0x7c00 ? u | 0x7f800000u : u", "u", elements.test_conversions, "f16", "f32"),
        ("fp8 truncates", "(1u << 19) - 1u + (m >> 20 & 1u)", "0u", elements.test_conversions, "f32", "e4m3"),
        ("fp8 does not saturate", "c = c > 0x7eu ? 0x7eu : c;", "", elements.test_conversions, "f32", "e4m3"),
        ("e4m3 has no NaN", "x = (c & 0x7f) == 0x7f ? NAN : x;", "", elements.test_conversions, "e4m3", "f32"),
        ("integers wrap around", "x >= 0x1p31 ? INT32_MAX : x <= -0x1p31 ? INT32_MIN : (int32_t)x", "(int32_t)(int64_t)x", elements.test_conversions, "f32", "i32"),
        ("NaN wins a minimum", "F minnumf##suffix(F a, F b) { return a < b ? a : b == b ? b : a; }", "F minnumf##suffix(F a, F b) { return a < b ? a : b; }", elements.test_floats_are_rounded_once, "f32"),
        ("NaN loses a maximum", "F maximumf##suffix(F a, F b) { return a != a ? a : a > b ? a : b; }", "F maximumf##suffix(F a, F b) { return a > b ? a : b; }", elements.test_floats_are_rounded_once, "f32"),
        ("division by zero traps", "T divsi_##N(T a, T b) { return b == 0 ? -1 :", "T divsi_##N(T a, T b) { return", elements.test_division_by_zero_does_not_trap, "i32"),
        ("no subnormal exponentials", "y = x < -150.0f ? 0.0f : y", "y = x < -126.0f ? 0.0f : y", elements.test_functions, "f32", 4e-7),
        ("logarithm of subnormals", "n - (is_small ? 24 : 0)", "n", elements.test_functions, "f32", 4e-7),
    ],
    "products.h": [
        ("single vectors", "BLOCK(2, 4, STEP, AHEAD) BLOCK(2, 1, STEP, AHEAD)", "BLOCK(2, 4, STEP, AHEAD)", products.test_product, (2, 16, 16), False),
        ("the first rows only", "m < M; m += MIN(M, BLOCK_ROWS)", "m < MIN(M, BLOCK_ROWS); m += MIN(M, BLOCK_ROWS)", products.test_product, (64, 16, 32), False),
        ("a few rows of tiles turned half", "for (int turned = 1; turned < M; turned *= 2) {\n    v16 old[M];\n    for (int i = 0; i < M; i++) old[i] = v[i];\n    for (int i = 0; i < M / 2; i++) {\n      v[2 * i]", "for (int turned = 1; turned < 2; turned *= 2) {\n    v16 old[M];\n    for (int i = 0; i < M; i++) old[i] = v[i];\n    for (int i = 0; i < M / 2; i++) {\n      v[2 * i]", products.test_product_of_bf16, (8, 32, 64), True),
        ("turned by three quarters", "TURN(8) TURN(4) TURN(2) TURN(1)", "TURN(8) TURN(4) TURN(2)", products.test_product, (16, 32, 64), True),
        ("the first columns of tiles only", "if (width > 2) { DO(2) DO(3) }", "", products.test_product_of_bf16, (4, 64, 32), False),
        ("the first pairs of tiles only", "for (int k = 0; k < K; k += 32) {\n      for (int i", "for (int k = 0; k < 32; k += 32) {\n      for (int i", products.test_product_of_bf16, (16, 32, 64), False),
    ],
    "access.h": [
        ("one element past the end", "address - l->extents[i].base <= l->extents[i].bytes - bytes", "address - l->extents[i].base <= l->extents[i].bytes", memory.test_a_read_too_far, memory.FP32),
        ("the row's end is not looked at", "is_inside(l, argument, (uint64_t)(p) + ((int64_t)(high) - 1) * (step) * (bytes), bytes)) ||", "1) ||", memory.test_a_read_too_far, memory.FP32),
        ("the last wrong element", "for (int i = 0; i < count; i++, p += step)", "for (int i = 0; i < 1; i++, p += (count - 1) * step)", memory.test_a_write_too_far_is_not_made),
        ("faults do not stop", "  *l->stop = 1;\n", "", memory.test_the_first_fault_ends_the_launch),
        ("atomics read and write", "} while (!__atomic_compare_exchange_n((U*)p, &was, next, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)); \\", "*(U*)p = next + 1; } while (0); \\", memory.test_cases, "atomics", False),
        ("atomic maximum is unsigned", "ATOMIC(max_##N, T, U, (T), (U), old > v ? old : v)", "ATOMIC(max_##N, T, U, (T), (U), (U)old > (U)v ? old : v)", memory.test_cases, "atomics", False),
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
