//! Where in the user's model a node comes from, out of what torch.export recorded.

use super::schema::Metadata;

/// Folders that packages are installed in: what follows is the path from an import root.
const PACKAGE_FOLDERS: [&str; 2] = ["/site-packages/", "/dist-packages/"];

/// Path of the innermost module: the stack's entries are `key,path,type`, outermost first.
pub fn module_path(metadata: &Metadata<'_>) -> String {
    let stack = metadata.nn_module_stack.as_deref().unwrap_or_default();
    let innermost = stack.rsplit(';').next().unwrap_or_default();
    innermost.split(',').nth(1).unwrap_or_default().to_owned()
}

/// The innermost line outside PyTorch, as `package/model.py:12`; empty where there is none.
///
/// An archive does not tell import paths: files outside of installed packages are named without
/// their folder.
pub fn user_line(metadata: &Metadata<'_>) -> String {
    let trace = metadata.stack_trace.as_deref().unwrap_or_default();
    for line in trace.lines().rev() {
        let Some((file, rest)) = line.trim().strip_prefix("File \"").and_then(|line| line.split_once("\", line "))
        else {
            continue;
        };
        let number = rest.split(',').next().unwrap_or_default();
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let file = relative(file);
        if is_number && !file.starts_with("torch/") {
            return format!("{file}:{number}");
        }
    }
    String::new()
}

fn relative(file: &str) -> &str {
    let inside = PACKAGE_FOLDERS.iter().find_map(|folder| file.rsplit_once(folder).map(|(_, inside)| inside));
    inside.unwrap_or_else(|| file.rsplit(['/', '\\']).next().unwrap_or(file))
}

#[cfg(test)]
mod tests {
    use super::{Metadata, module_path, user_line};

    fn metadata<'a>(trace: &'a str, stack: &'a str) -> Metadata<'a> {
        Metadata { stack_trace: Some(trace.into()), nn_module_stack: Some(stack.into()) }
    }

    #[test]
    fn the_innermost_line_outside_of_pytorch_is_taken() {
        let trace = "  File \"/project/model.py\", line 9, in forward\n    y = self.l(x)\n  \
                     File \"/v/lib/python3.11/site-packages/torch/nn/modules/linear.py\", line 134, in forward\n    return";
        assert_eq!(user_line(&metadata(trace, "")), "model.py:9");
        let trace = "File \"/v/site-packages/transformers/models/bert/modeling_bert.py\", line 70, in forward";
        assert_eq!(user_line(&metadata(trace, "")), "transformers/models/bert/modeling_bert.py:70");
        assert_eq!(user_line(&metadata("File \"x.py\", line many, in f", "")), "");
    }

    #[test]
    fn the_innermost_module_is_taken() {
        let stack = "L__self__,,__main__.Model;L__self___layers_0,layers.0,torch.nn.modules.linear.Linear";
        assert_eq!(module_path(&metadata("", stack)), "layers.0");
        assert_eq!(module_path(&metadata("", "L__self__,,__main__.Model")), "");
        assert_eq!(module_path(&Metadata::default()), "");
    }
}
