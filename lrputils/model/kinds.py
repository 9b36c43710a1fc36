"""The kinds of operations, by the names by which torch hands a call over."""

# What is done with a call → its names.
_NAMES = {
    "product": "matmul __matmul__ __rmatmul__ bmm baddbmm einsum",
    "linear map": "linear addmm conv1d conv2d mm",
    "softmax": "softmax",
    "attention": "scaled_dot_product_attention",
    "layer norm": "layer_norm",
    "root norm": "rms_norm",
    # Entry by entry.
    "times": "mul __mul__ __rmul__ mul_ __imul__ multiply",
    "divided": "div __truediv__ true_divide div_ __itruediv__ __rtruediv__ __rdiv__ divide",
    "plus": "add __add__ __radd__ add_ __iadd__ sub __sub__ __rsub__ rsub sub_ __isub__ subtract",
    "sign": "neg __neg__ negative",
    "activation": "gelu silu silu_ tanh tanh_ relu relu_ relu6 elu elu_ leaky_relu mish selu celu "
    "hardswish hardtanh quick_gelu erf abs clamp clamp_ clamp_min clamp_max hardshrink softsign "
    "tanhshrink",
    "curve": "sigmoid sigmoid_ pow __pow__ square exp softplus hardsigmoid expm1",
    "held": "rsqrt sqrt var std norm vector_norm linalg_vector_norm reciprocal",
    "linear": "view reshape transpose permute cat stack concat concatenate chunk split unbind "
    "__getitem__ __setitem__ contiguous to float half double bfloat16 type type_as dropout "
    "dropout_ where masked_fill masked_fill_ sum mean nansum repeat repeat_interleave expand "
    "expand_as flatten unflatten squeeze unsqueeze roll flip pad index_add index_add_ index_select "
    "index_copy index_put index_put_ gather scatter scatter_ scatter_add scatter_add_ swapaxes "
    "swapdims clone movedim moveaxis unfold tril triu view_as reshape_as take_along_dim narrow "
    "select unsafe_chunk unsafe_split split_with_sizes tensor_split hstack vstack cumsum "
    "as_strided masked_select masked_scatter copy_ broadcast_to broadcast_tensors max amax min "
    "amin topk sort diagonal diag_embed avg_pool1d adaptive_avg_pool1d new_tensor requires_grad_ "
    "fill_ zero_ ravel fft_fftn fft_fft real view_as_real _grouped_mm normal_",
    "plain": "detach size dim numel stride shape data_ptr is_contiguous item tolist",
}
KINDS = {name: kind for kind, names in _NAMES.items() for name in names.split()}
ENTRYWISE = {"times", "divided", "plus", "sign", "activation", "curve"}
