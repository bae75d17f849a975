#!/usr/bin/env bash
# The cycles of the aarch64 row kernels by llvm-mca: prints the table of kernels/mca.md. With --check
# it fails if a figure is more than 3 % above that table; with another compiler than the table's it
# prints and passes. Needs gcc-aarch64-linux-gnu and llvm-mca (LLVM_MCA, else llvm-mca-19).
set -euo pipefail
cd "$(dirname "$0")/.."
table=kernels/mca.md
mca=${LLVM_MCA:-llvm-mca-19}
cpus=(neoverse-v2 cortex-a720 oryon-1 cortex-a520)
# The flags of kernels/compile.rs.
flags=(-std=c11 -O3 -ffp-contract=off -fno-math-errno -fno-builtin -fno-stack-protector
    -fno-tree-loop-distribute-patterns -fno-schedule-insns -frename-registers -mtune=cortex-a55
    -Ikernels)

# The innermost loop of function $2 in assembly $1 that has the most instructions like $3.
hot_loop() {
    awk -v label="$2:" -v op="^($3)\$" '
        $0 == label { inside = 1; next }
        !inside { next }
        $1 == ".size" { exit }
        { line[++n] = $0 }
        $1 ~ /^\.L[0-9]+:$/ { at[substr($1, 1, length($1) - 1)] = n }
        $1 ~ /^[bct]/ && $NF ~ /^\.L[0-9]+$/ {
            branch[n] = 1
            if (!($NF in at)) next
            count = 0
            for (i = at[$NF] + 1; i < n; i++) {
                if (i in branch) next
                split(line[i], word)
                count += word[1] ~ op
            }
            if (count > most) { most = count; first = at[$NF] + 1; last = n }
        }
        END {
            print ".Lloop:"
            for (i = first; i <= last; i++) {
                if (line[i] ~ /^\t\./) continue
                sub(/\.L[0-9]+$/, ".Lloop", line[i])
                sub(/0xffffffffffffff/, "0x", line[i]) # a byte as gcc writes it
                print line[i]
            }
        }' "$1"
}

# One row of the table: $1 source without .c, $2 function, $3 the instructions that mark its loop,
# $4 blocks in a turn of it, $5 what is counted if it is not the multiplication.
row() {
    local cells="" cpu cycles more=()
    case $1 in
        neon_*) more=(-march=armv8-a+crc) ;;
        dotprod_*) more=(-march=armv8.2-a+dotprod) ;;
        i8mm_*) more=(-march=armv8.2-a+dotprod+i8mm -fschedule-insns) ;;
    esac
    aarch64-linux-gnu-gcc "${flags[@]}" "${more[@]}" -S "kernels/arm/$1.c" -o "$work/kernel.s"
    hot_loop "$work/kernel.s" "$2" "$3" > "$work/loop.s"
    for cpu in "${cpus[@]}"; do
        cycles=$("$mca" -mtriple=aarch64 -mattr=+dotprod,+i8mm -mcpu="$cpu" -iterations=1000 \
            -skip-unsupported-instructions=lack-sched "$work/loop.s" 2> /dev/null |
            awk '/^Total Cycles:/ { print $3 }')
        cells+=" $(awk -v c="$cycles" -v b="$4" 'BEGIN { printf "%.2f", c / 1000 / b }') |"
    done
    echo "| \`$2\`${5:+, $5} |$cells"
}

work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
llvm=$("$mca" --version | awk '/version/ && !n++ { print $NF }')
compiler="gcc $(aarch64-linux-gnu-gcc -dumpfullversion), LLVM $llvm"
{
    # A band of 16 groups of four rows.
    row dotprod_matvec gk_matvec_f32_q4_q8_dotprod sdot 64
    row dotprod_matvec gk_matvec_f32_q8_q8_dotprod sdot 64
    row neon_matvec gk_matvec_f32_q4_q8_neon 'smlal2?' 64
    row neon_matvec gk_matvec_f32_q8_q8_neon 'smlal2?' 64
    # Four groups of four rows and four tokens, or one token.
    row dotprod_gemm gk_gemm_f32_q4_q8_dotprod sdot 64
    row dotprod_gemm gk_gemm_f32_q8_q8_dotprod sdot 64
    row neon_gemm gk_gemm_f32_q4_q8_neon 'smlal2?' 16
    row neon_gemm gk_gemm_f32_q8_q8_neon 'smlal2?' 16
    # A group of eight rows and four tokens; four groups of two rows, of two tokens.
    row i8mm_gemm gk_gemm_f32_q4_q8_i8mm smmla 32
    row i8mm_gemm gk_gemm_f32_q8_q8_i8mm smmla 32
    row i8mm_gemm gk_gemm_f32_q4_q8_i8mm fcvtl 8 "layout of rows"
    row i8mm_gemm gk_gemm_f32_q8_q8_i8mm fcvtl 8 "layout of rows"
    row i8mm_gemm gk_gemm_f32_q4_q8_i8mm 'zip[12]' 8 "layout of tokens"
} > "$work/table"
echo "$compiler; cycles per block of 32 weights, row and token on ${cpus[*]}:"
cat "$work/table"
[ "${1:-}" = --check ] || exit 0
if ! grep -qF "$compiler" "$table"; then
    echo "$table was made by another compiler: not compared"
    exit 0
fi
awk -F '|' '
    NR == FNR { for (i = 3; i < NF; i++) was[$2, i] = $i; next }
    { for (i = 3; i < NF; i++) if (!(($2, i) in was) || $i > was[$2, i] * 1.03) {
        printf "%s now takes %s cycles, the table says %s\n", $2, $i, was[$2, i]
        bad = 1
    } }
    END { exit bad }' <(grep '^| `gk_' "$table") "$work/table"
