// Which texts go to others without their secrets.
#include "cli/begin/secrets.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>

namespace penstock::cli {
namespace {

// S stands for the secret.
constexpr std::array texts{"AKIASSSSSSSSSSSSSSSS",
                           "ASIASSSSSSSSSSSSSSSS",
                           "hf_SSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSS",
                           "ghp_SSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSS",
                           "gho_SSSSSSSSSSSSSSSSSSSS",
                           "ghu_SSSSSSSSSSSSSSSSSSSS",
                           "ghs_SSSSSSSSSSSSSSSSSSSS",
                           "ghr_SSSSSSSSSSSSSSSSSSSS",
                           "github_pat_11SSSSSSSSSS_SSSSSSSSSSSSSS",
                           "glpat-SSSSSSSSSSSSSSSSSSSS",
                           "gldt-SSSSSSSSSSSSSSSSSSSS",
                           "AIzaSySSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSS",
                           "ya29.SSSSSSSSSSSSSSSS",
                           "xoxb-1-SSSSSSSSSSSS",
                           "xoxp-1-SSSSSSSSSSSS",
                           "xoxa-2-SSSSSSSSSSSS",
                           "xoxr-SSSSSSSSSSSS",
                           "xoxs-SSSSSSSSSSSS",
                           "xapp-1-SSSSSSSSSSSS",
                           "sk-SSSSSSSSSSSSSSSSSSSSSSSS",
                           "sk-proj-SSSSSSSSSSSSSSSSSSSS",
                           "sk-ant-api03-SSSSSSSSSSSSSSSSSSSS",
                           "nvapi-SSSSSSSSSSSSSSSS",
                           "npm_SSSSSSSSSSSSSSSS",
                           "pypi-SSSSSSSSSSSSSSSS",
                           "eyJSSSSSSSSSSSS.eyJSSSSSSSSSS.SSSS-SSSSS_SS",
                           "Authorization: Basic SSSSSSSS",
                           "Basic SSSSSSSSSSSS==",
                           "basic U1NTUzpTU1NSSSSS",
                           "Bearer SSSSSSSS",
                           "bearer SSSSSSSS",
                           "sv=2022-11-02&sr=b&sig=SSSSSSSS%3D",
                           "sig=SSSSSSSS",
                           "https://account.blob.core.windows.net/c/b?sv=2022&sig=SSSSSSSS%3D",
                           "https://user:SSSSSSSS@host/path",
                           "s3://SSSSSSSS:SSSSSSSS@bucket/key",
                           "http://host/x?token=SSSSSSSS#SSSS",
                           "-----BEGIN PRIVATE KEY-----\nSSSSSSSS\n-----END PRIVATE KEY-----",
                           "-----BEGIN OPENSSH PRIVATE KEY-----\nSSSSSSSS",
                           "-----BEGIN PGP PRIVATE KEY BLOCK-----\nSSSSSSSS\n-----END PGP PRIVATE KEY BLOCK-----",
                           "hf_token: SSSSSSSS",
                           "aws_secret_access_key = SSSSSSSS",
                           "{\"access_token\": \"SSSSSSSS\"}"};

TEST(secrets, go_wherever_they_stand) {
  constexpr std::array<std::string_view, 7> places{"{}", "export X={}", "a {} b", "\"{}\"", "path/{}", "-H '{}'", "x_{},"};
  for (const std::string_view text : texts) {
    for (const std::string_view place : places) {
      std::string whole(place);
      whole.replace(whole.find("{}"), 2, text);
      EXPECT_EQ(without_secrets(whole).find("SSSS"), std::string::npos) << whole << "\n" << without_secrets(whole);
    }
  }
}

TEST(secrets, take_no_other_words_with_them) {
  for (const std::string text :
       {"the basic channel copies", "Basic copies of bytes", "task-SSSSSSSSSSSSSSSSSSSS", "/opt/hf_models", "disk-usage of sk-learn",
        "design=new", "https://host/path", "a bearer", "-----BEGIN CERTIFICATE-----\nMII", "scsi_transport_sas: 1", "sk_buff_head_of_a"})
    EXPECT_EQ(without_secrets(text), text);
}

}  // namespace
}  // namespace penstock::cli
