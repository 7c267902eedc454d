#include "cli/shell/examples.hpp"

namespace penstock::cli {
namespace {

constexpr bool not_run = false;

// The examples use data.bin (any bytes), model.safetensors, train.py, and files that earlier examples create.
constexpr example example_table[] = {
    {"", "penstock check", "What slows this machine down, and how to fix it"},
    {"", "penstock demo --size 64MiB", "A 64 MiB file to the device and back, compared"},
    {"", "penstock help read", "The options of one command"},

    {"demo", "penstock demo", "A 1 GiB file to the device and back, compared"},
    {"demo", "penstock demo --dir . --size 64MiB", "A small file, on this folder's disk"},

    {"check", "penstock check", "What slows this machine down, and how to fix it"},
    {"check", "penstock check data.bin", "Which path each part of a file takes, and why"},
    {"check", "penstock check --bundle=report.tar data.bin", "A file with everything that support needs"},

    {"devices", "penstock devices", "The devices, or why none of them is a GPU"},
    {"devices", "penstock devices --json", "The same for a program"},

    {"read", "penstock read data.bin --verify", "A file into the first device, every byte compared"},
    {"read", "penstock read data.bin --device host --repeat 3", "Into host memory, three times"},
    {"read", "penstock read data.bin --gpu 1 --offset 1MiB --length 64KiB", "A part of it into the second GPU", not_run},

    {"write", "penstock write new.bin --size 16MiB --verify", "A new file from device memory, read back and compared"},
    {"write", "penstock write new.bin --size 16MiB --direct --force", "Overwrite it, bypassing the page cache"},

    {"cp", "penstock cp --verify data.bin copy.bin", "A copy, read back from the disk and compared"},
    {"cp", "penstock cp -r -p models /backup", "A folder, with modes and times", not_run},
    {"cp", "penstock cp data.bin s3://bucket/data.bin", "To an object on a server", not_run},

    {"verify", "penstock verify data.bin copy.bin > sums.txt", "Checksums, as sha256sum prints them"},
    {"verify", "penstock verify --check sums.txt", "Check the files against these checksums"},
    {"verify", "penstock verify --compare data.bin copy.bin", "Where two files first differ"},

    {"load", "penstock load model.safetensors --time", "How fast a model loads, and where the time is spent"},
    {"load", "penstock load model.safetensors --device host --verify", "Into host memory, every byte compared"},
    {"load", "penstock load model_folder --gpus 0,1", "The whole model into each of two GPUs", not_run},

    {"inspect", "penstock inspect model.safetensors", "Its tensors: types, shapes, bytes, offsets"},
    {"inspect", "penstock inspect model.safetensors --sort bytes", "The largest tensors first"},
    {"inspect", "penstock inspect model.safetensors --totals --json", "The totals for a program"},

    {"convert", "penstock convert model.safetensors model.pt", "A checkpoint that torch.load reads"},
    {"convert", "penstock convert model.pt again.safetensors", "And back"},

    {"serve", "penstock serve model_folder --device cuda:0", "Serve until Ctrl-C; programs use penstock.attach_weights()", not_run},
    {"serve", "penstock serve model_folder --host", "Use host memory, which readers cannot change", not_run},

    {"bench", "penstock bench --quick", "Seconds on a small machine"},
    {"bench", "penstock bench --quick --size 64MiB --rows hot-4g,call-4k", "Two rows (--list shows all)"},
    {"bench", "penstock bench --report report.html", "A page with plots, compared with other libraries", not_run},

    {"io", "penstock io -f io.bin -s 16M -I 1", "Write a 16 MiB file, as gdsio does"},
    {"io", "penstock io -f io.bin -w 2 -i 1M", "Read it with two threads, 1 MiB per request"},
    {"io", "penstock io -f io.bin --sweep -T 0.1 --plot io.svg", "Several sizes and thread counts, with a plot"},

    {"pipe-bench", "penstock pipe-bench --sizes 4KiB,16MiB --seconds 0.1", "Two sizes, in a second"},
    {"pipe-bench", "penstock pipe-bench --from cuda:0 --to cuda:1", "From one GPU to another", not_run},

    {"stats", "penstock stats", "A line for each running process"},
    {"stats", "penstock stats --pid 1234 --level 3", "All counters of one process", not_run},
    {"stats", "penstock stats --serve 9464", "For Prometheus, until Ctrl-C", not_run},

    {"top", "penstock top", "Live, until you press q", not_run},
    {"top", "penstock top --once", "Speeds over one second, as plain lines"},

    {"run", "penstock run -- python3 train.py", "An unmodified program, on Penstock"},
    {"run", "penstock run --log summary -- python3 train.py", "The same, with a summary of its reads when it exits"},

    {"completion", "source <(penstock completion bash)", "Complete commands and options in this shell", not_run},
    {"completion", "penstock completion zsh > _penstock", "A file for a folder in zsh's fpath"},

    {"help", "penstock help read", "The options of one command"},
    {"help", "penstock help --man read > penstock-read.1", "The same as a manual page"},
};

}  // namespace

std::span<const example> all_examples() noexcept { return example_table; }

}  // namespace penstock::cli
