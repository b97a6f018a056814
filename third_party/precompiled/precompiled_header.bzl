"""LibTorch's headers, read by the compiler once per build instead of once per file."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    header = ctx.actions.declare_file(ctx.label.name + ".h")
    ctx.actions.write(header, "".join(["#include <%s>\n" % include for include in ctx.attr.headers]))
    outputs = [header]

    # clang takes a `.gch` for one of its own and stops. Without one, the header is read as text.
    if toolchain.compiler in ["gcc", "compiler"]:
        precompiled = ctx.actions.declare_file(ctx.label.name + ".h.gch")
        features = cc_common.configure_features(
            ctx = ctx,
            cc_toolchain = toolchain,
            requested_features = ctx.features,
            unsupported_features = ctx.disabled_features,
        )
        context = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context
        variables = cc_common.create_compile_variables(
            feature_configuration = features,
            cc_toolchain = toolchain,
            source_file = header.path,
            output_file = precompiled.path,
            user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts + ["-x", "c++-header"],
            include_directories = context.includes,
            quote_include_directories = context.quote_includes,
            system_include_directories = context.system_includes,
            preprocessor_defines = context.defines,
            use_pic = True,
        )
        ctx.actions.run(
            executable = cc_common.get_tool_for_action(feature_configuration = features, action_name = CPP_COMPILE_ACTION_NAME),
            arguments = cc_common.get_memory_inefficient_command_line(
                feature_configuration = features,
                action_name = CPP_COMPILE_ACTION_NAME,
                variables = variables,
            ),
            env = cc_common.get_environment_variables(
                feature_configuration = features,
                action_name = CPP_COMPILE_ACTION_NAME,
                variables = variables,
            ),
            inputs = depset([header], transitive = [context.headers, toolchain.all_files]),
            outputs = [precompiled],
            mnemonic = "PrecompileHeader",
            progress_message = "Precompiling %s" % " and ".join(ctx.attr.headers),
        )
        outputs.append(precompiled)

    files = depset(outputs)
    return [
        DefaultInfo(files = files),
        CcInfo(compilation_context = cc_common.create_compilation_context(headers = files)),
    ]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "copts": attr.string_list(doc = "As of the files that use it: GCC ignores a header that was precompiled with others."),
        "deps": attr.label_list(providers = [CcInfo]),
        "headers": attr.string_list(mandatory = True),
        "_cc_toolchain": attr.label(default = Label("@bazel_tools//tools/cpp:current_cc_toolchain")),
    },
    doc = """Makes NAME.h, which includes `headers`, and NAME.h.gch beside it.

Targets that depend on it and are compiled with `-include third_party/precompiled/NAME.h` use the latter; where GCC
finds that its flags differ, it reads NAME.h instead, so the result is the same.""",
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
